/** The stored facts of a run, as they are. */
import { number } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useState } from "../core/view.js";
import { Button, Empty, heads, Moment, Place, Segmented } from "../parts/basics.js";
import { brief, Json } from "../parts/json.js";
import { text } from "../parts/text.js";

const STATES = /** @type {[string, string][]} */ ([["", "all"], ["result", "results"], ["failure", "failures"], ["start", "starts"], ["plan", "plan"]]);

/** @param {any} props */
export function Tab({ path, live, runNumber }) {
  const { query } = useStore(route);
  const state = query.get("state") ?? "";
  const [cursor, setCursor] = useState(/** @type {string | undefined} */ (undefined));
  const facts = useGet(path("facts/all"), { pageSize: 100, cursor, runNumber }, live?.version);
  return html`<div class="tab-body" tabindex="0" role="region" aria-label="facts"><div class="row"><${Segmented} label="State" value=${state} options=${STATES} onChange=${(/** @type {string} */ next) => setQuery({ state: next })} /><a class="button right" download href=${exportUrl(path, runNumber)}>Export</a></div>
    <${Place} resource=${facts}>${(/** @type {any} */ data) => html`<p class="ink3">${number(data.total)} facts</p>${data.facts.length ? html`<table class="table mono cards">${heads("seq|num", "at", "state", "kind", "key", "attempts|num", "value")}
      <tbody>${data.facts.filter((/** @type {any} */ fact) => state === "" || fact.state === state).map((/** @type {any} */ fact) => html`<tr class=${fact.ok === false ? "s-errored" : ""}><td class="num ink3">${fact.seq ?? "–"}</td><td><${Moment} at=${fact.at} /></td><td class=${fact.ok === false ? "state" : ""}>${text(fact.state, 20)}</td><td>${text(fact.kind ?? "–", 30)}</td><td class="cut">${text(fact.key, 120)}</td><td class="num">${fact.attempts ?? "–"}</td><td><details><summary class="cut">${brief(fact.value, 60)}</summary><${Json} value=${fact.value} /></details></td></tr>`)}</tbody></table>` : html`<${Empty} sentence="No facts are stored." />`}
      <div class="row pager">${cursor ? html`<${Button} quiet label="First" onClick=${() => setCursor(undefined)} />` : null}${data.hasNextPage ? html`<${Button} label="More" onClick=${() => setCursor(data.nextCursor ?? data.cursor)} />` : null}</div>`}<//></div>`;
}

/** @param {(rest: string) => string} path @param {number} runNumber */
function exportUrl(path, runNumber) {
  return new URL(`_api/${path("export")}?runNumber=${runNumber}`, document.baseURI).href;
}
