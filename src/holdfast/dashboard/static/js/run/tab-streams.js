/** The streams of a run: what its steps emitted, as it comes. */
import { apiUrl, get } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useState } from "../core/view.js";
import { Empty, Place, Segmented } from "../parts/basics.js";
import { text } from "../parts/text.js";

const MOST = 1000;

/** @param {any} props */
export function Tab({ path, live }) {
  const { query } = useStore(route);
  const streams = useResource(`streams ${path("")} ${live?.streams}`, (signal) => get(path("streams"), {}, signal));
  return html`<div class="tab-body"><${Place} resource=${streams}>${(/** @type {any} */ data) => {
    const names = data.streams.map((/** @type {any} */ stream) => stream.name);
    const name = names.includes(query.get("stream")) ? query.get("stream") : names[0];
    return names.length ? html`<${Segmented} label="Stream" value=${name} options=${names.map((/** @type {string} */ each) => [each, text(each, 40)])} onChange=${(/** @type {string} */ stream) => setQuery({ stream })} /><${Entries} key=${name} path=${path} name=${name} />` : html`<${Empty} sentence="This run has no streams." />`;
  }}<//></div>`;
}

/** @param {{path: (rest: string) => string, name: string}} props */
function Entries({ path, name }) {
  const [entries, setEntries] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    const source = new EventSource(apiUrl(path(`streams/${encodeURIComponent(name)}`)));
    source.onmessage = (event) => setEntries((old) => [...old, event.data].slice(-MOST));
    source.addEventListener("end", () => source.close());
    return () => source.close();
  }, [name]);
  return html`<ol class="mono sunken">${entries.map((entry) => html`<li>${text(entry, 2000)}</li>`)}</ol>`;
}
