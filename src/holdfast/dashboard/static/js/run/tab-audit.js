/** The audit of one run. */
import { useGet } from "../core/resource.js";
import { html } from "../core/view.js";
import { AuditTable } from "../parts/audit-table.js";
import { Empty, Place } from "../parts/basics.js";

/** @param {any} props */
export function Tab({ path, live }) {
  const audit = useGet(path("audit"), { pageSize: 100 }, `${live?.status} ${live?.version}`);
  return html`<div class="tab-body" tabindex="0" role="region" aria-label="audit"><${Place} resource=${audit}>${(/** @type {any} */ data) => (data.records.length ? html`<${AuditTable} records=${data.records} target=${false} />` : html`<${Empty} sentence="There are no control requests on this run." />`)}<//></div>`;
}
