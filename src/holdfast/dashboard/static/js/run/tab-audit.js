/** The audit of one run. */
import { get } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { html } from "../core/view.js";
import { AuditTable } from "../parts/audit-table.js";
import { Empty, Place } from "../parts/basics.js";

/** @param {any} props */
export function Tab({ path, live }) {
  const audit = useResource(`audit ${path("")} ${live?.status} ${live?.version}`, (signal) => get(path("audit"), { pageSize: 100 }, signal));
  return html`<div class="tab-body" tabindex="0" role="region" aria-label="audit"><${Place} resource=${audit}>${(/** @type {any} */ data) => (data.records.length ? html`<${AuditTable} records=${data.records} target=${false} />` : html`<${Empty} sentence="Nobody has paused, cancelled or repaired this run." />`)}<//></div>`;
}
