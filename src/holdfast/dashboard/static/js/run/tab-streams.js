/** The streams of a run, whose items are shown as they are written. */
import { apiUrl } from "../core/api.js";
import { plural } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useState } from "../core/view.js";
import { Empty, heads, Moment, Place, Segmented } from "../parts/basics.js";
import { brief, Json } from "../parts/json.js";
import { text } from "../parts/text.js";

const MOST = 1000;

/** @param {any} props */
export function Tab({ path, live, runNumber }) {
  const { query } = useStore(route);
  const streams = useGet(path("streams"), { runNumber }, live?.streams);
  return html`<div class="tab-body" tabindex="0" role="region" aria-label="streams"><${Place} resource=${streams}>${(/** @type {any} */ data) => {
    const names = data.streams.map((/** @type {any} */ stream) => stream.name);
    const name = names.includes(query.get("stream")) ? query.get("stream") : names[0];
    return names.length ? html`<${Segmented} label="Stream" value=${name} options=${names.map((/** @type {string} */ each) => [each, text(each, 40)])} onChange=${(/** @type {string} */ stream) => setQuery({ stream })} /><${Entries} key=${name} path=${path} name=${name} runNumber=${runNumber} />` : html`<${Empty} sentence="This run has no streams." />`;
  }}<//></div>`;
}

/** @typedef {{value: any, stepKey: string | null, attempt: number, at: string, offset: string}} Item */

/** The items of one stream, in their order, as they are written. @param {{path: (rest: string) => string, name: string, runNumber: number}} props */
function Entries({ path, name, runNumber }) {
  const [items, setItems] = useState(/** @type {Item[]} */ ([]));
  const [ended, setEnded] = useState(false);
  useEffect(() => {
    const source = new EventSource(apiUrl(path(`streams/${encodeURIComponent(name)}`), { runNumber }));
    source.onmessage = (event) => setItems((old) => [...old, { ...JSON.parse(event.data), offset: event.lastEventId }].slice(-MOST));
    source.addEventListener("end", () => {
      source.close();
      setEnded(true);
    });
    return () => source.close();
  }, [name, runNumber]);
  return html`<p class="ink3 small">${plural(items.length, "item")}${ended ? ", complete" : ", followed as they are written"}</p>
    <table class="table mono cards">${heads("offset|num", "at", "written by", "value")}<tbody>${items.map((item) => html`<tr key=${item.offset}><td class="num ink3">${item.offset}</td><td><${Moment} at=${item.at} /></td><td class="ink2 cut">${text(item.stepKey ?? "workflow code", 60)}${item.attempt > 1 ? ` #${item.attempt}` : ""}</td><td><details><summary class="cut">${brief(item.value, 200)}</summary><${Json} value=${item.value} /></details></td></tr>`)}</tbody></table>`;
}
