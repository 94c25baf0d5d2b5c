/** The audit of the whole system, newest first. */
import { useGet } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html } from "../core/view.js";
import { AuditTable } from "../parts/audit-table.js";
import { Button, Empty, Place } from "../parts/basics.js";

export function Screen() {
  const { query } = useStore(route);
  const cursor = query.get("cursor");
  const audit = useGet("_audit", { pageSize: 50, cursor });
  return html`<section class="card"><header><h1 class="strong">Audit</h1><span class="ink3">control requests, newest first</span></header><${Place} resource=${audit}>${(/** @type {any} */ data) => (data.records.length ? html`<${AuditTable} records=${data.records} />` : html`<${Empty} sentence="There are no control requests yet." />`)}<//></section>
    <div class="row pager"><span class="right row"><${Button} quiet icon="left" label="Newest" disabled=${!cursor} onClick=${() => setQuery({ cursor: null })} /><${Button} label="Older" icon="right" disabled=${!audit.data?.nextCursor} onClick=${() => setQuery({ cursor: audit.data?.nextCursor }, { replace: false })} /></span></div>`;
}
