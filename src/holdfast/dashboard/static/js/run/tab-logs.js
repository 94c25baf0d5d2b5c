/** The log lines of a run: followed while it is open, replayed lines hidden at first. */
import { get } from "../core/api.js";
import { plural } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, onText, useEffect, useRef, useState } from "../core/view.js";
import { Button, Empty, Place, Segmented, Toggle } from "../parts/basics.js";
import { LogLines } from "../parts/log-lines.js";

const PAGE = 100;
const MOST = 2000; // older lines leave the page
const LEVELS = /** @type {[string, string][]} */ ([["", "all"], ["debug", "debug"], ["info", "info"], ["warn", "warn"], ["error", "error"]]);

/** @param {any} props */
export function Tab({ path, live, runNumber }) {
  const { query } = useStore(route);
  const level = query.get("level") ?? "";
  const replayed = query.get("replayed") === "1";
  const [typed, setTyped] = useState("");
  const [follow, setFollow] = useState(true);
  const end = useRef(/** @type {HTMLElement | null} */ (null));
  const known = useRef(/** @type {{key: string, lines: any[], cursor?: string, more: boolean}} */ ({ key: "", lines: [], more: false }));
  const key = `${path("")} ${runNumber} ${level}`;
  const logs = useResource(`logs ${key}`, async (signal) => {
    if (known.current.key !== key) known.current = { key, lines: [], more: false };
    const page = await get(path("history"), { includeLogs: true, pageSize: PAGE, logsCursor: known.current.cursor, logLevel: level, runNumber }, signal);
    known.current = { key, lines: [...known.current.lines, ...page.logs].slice(-MOST), cursor: page.logsCursor, more: page.logsHasNextPage };
    return known.current;
  });
  useEffect(() => {
    if (logs.data) logs.refresh();
  }, [live?.logs]);
  const lines = (logs.data?.lines ?? []).filter((line) => (replayed || !line.isReplay) && (typed === "" || line.message.toLowerCase().includes(typed.toLowerCase())));
  useEffect(() => {
    if (logs.data?.more && follow) logs.refresh();
    else if (follow) end.current?.scrollIntoView({ block: "nearest" });
  }, [logs.data]);
  const hidden = (logs.data?.lines ?? []).filter((line) => line.isReplay).length;
  return html`<div class="row wrap timeline-tools"><input class="input search" type="search" aria-label="Filter log lines" placeholder="Filter" value=${typed} onInput=${onText(setTyped)} />
      <${Segmented} label="Level" value=${level} options=${LEVELS} onChange=${(/** @type {string} */ next) => setQuery({ level: next })} />
      <label class="row"><${Toggle} label="Show replayed lines" checked=${replayed} onChange=${() => setQuery({ replayed: replayed ? null : "1" })} />replayed ${hidden ? html`<span class="ink3">${hidden}</span>` : null}</label>
      <label class="row"><${Toggle} label="Follow" checked=${follow} onChange=${() => setFollow(!follow)} />follow</label><span class="right ink3">${plural(lines.length, "line")}</span></div>
    <div class="tab-body" tabindex="0" role="region" aria-label="log lines"><${Place} resource=${logs}>${() => (lines.length ? html`<${LogLines} lines=${lines} />` : html`<${Empty} sentence="No log lines match." command=${'ctx.log.info("charged", {"payment": payment})'} />`)}<//>
      ${logs.data?.more && !follow ? html`<${Button} label="More" onClick=${logs.refresh} />` : null}<div ref=${end}></div></div>`;
}
