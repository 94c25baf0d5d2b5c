/** Workers and versions. */
import { may, post } from "../core/api.js";
import { number } from "../core/format.js";
import { useLive } from "../core/live.js";
import { useGet, usePolling } from "../core/resource.js";
import { href } from "../core/router.js";
import { html } from "../core/view.js";
import { Age, Button, Empty, heads, Moment, Place } from "../parts/basics.js";
import { openConfirm } from "../parts/confirm.js";
import { Status } from "../parts/status.js";
import { text } from "../parts/text.js";

/** @param {any} worker */
const stateOf = (worker) => (!worker.alive ? "lost" : worker.draining ? "paused" : "active");

/** @param {any} worker @param {() => void} done */
function drain(worker, done) {
  const label = worker.draining ? "Resume" : "Drain";
  openConfirm({
    title: `${label} ${worker.id}`, label, done,
    effect: worker.draining ? "The worker claims runs again." : `The worker claims no more runs. Steps in flight end, and other workers continue with its ${number(worker.held)} runs. Its process stays until it is stopped.`,
    run: (reason) => post(`_workers/${encodeURIComponent(worker.id)}/${label.toLowerCase()}`, { reason }),
  });
}

export function Screen() {
  const workers = useGet("_workers");
  const versions = useGet("_versions");
  useLive("topic=workers", { changed: () => { workers.refresh(); versions.refresh(); }, open: (again) => (again ? workers.refresh() : undefined) });
  usePolling(workers.refresh, 10_000);
  /** @type {any[]} */
  const all = workers.data?.workers ?? [];
  return html`<h1 class="sr">Workers</h1><div class="stack"><section class="card"><header><h2>Workers</h2><span class="ink3">${workers.data ? `${all.filter((each) => each.alive).length} alive of ${all.length}` : ""}</span></header>
    <${Place} resource=${workers}>${() => (all.length ? html`<table class="table cards">${heads("state", "worker", "host|wide-only", "queues|wide-only", "held|num", "slots|num wide-only", "version|wide-only", "started|wide-only", "seen|num", may("operate") && ".action")}
      <tbody>${all.map((worker) => html`<tr key=${worker.id}><td><${Status} state=${stateOf(worker)} word=${worker.alive ? (worker.draining ? "draining" : "alive") : "lost"} /></td><td class="mono cut" title=${worker.id}>${text(worker.id, 60)}</td><td class="mono wide-only">${text(worker.host, 40)} <span class="ink3">${worker.pid}</span></td><td class="mono wide-only">${text((worker.queues ?? []).join(", ") || "all", 60)}</td><td class="num">${number(worker.held)}<span class="narrow-only"> held</span></td><td class="num ink2 wide-only">${number(worker.concurrency)}</td><td class="mono wide-only">${text(worker.version ?? "–", 40)}</td><td class="wide-only"><${Moment} at=${worker.startedAt} /></td><td class="num ink2"><span class="narrow-only">seen </span><${Age} at=${worker.seenAt} /></td>${may("operate") ? html`<td class="num">${worker.alive ? html`<${Button} label=${worker.draining ? "Resume…" : "Drain…"} onClick=${() => drain(worker, workers.refresh)} />` : null}</td>` : null}</tr>`)}</tbody></table>` : html`<${Empty} sentence="No worker has been seen." command="holdfast worker shop:app" />`)}<//></section>
    <section class="card"><header><h2>Versions</h2><span class="ink3">with open runs or living workers</span></header><${Place} resource=${versions} rows=${2}>${(/** @type {any} */ data) => html`<table class="table">${heads("version", "open runs|num", "workers|num")}<tbody>${data.versions.map((/** @type {any} */ version) => html`<tr class=${version.alive ? "" : "s-errored"}><td class="mono">${version.version === null ? "without a version" : html`<a class="link" href=${href(["runs"], { q: `version:${version.version}` })}>${text(version.version, 60)}</a>`}</td><td class="num">${number(version.openRuns)}</td><td class=${`num ${version.alive ? "" : "state"}`}>${version.workers.length || "none"}</td></tr>`)}</tbody></table>`}<//></section></div>`;
}
