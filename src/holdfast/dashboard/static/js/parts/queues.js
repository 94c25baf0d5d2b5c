/** The queues: what is due, who takes it, and what can be done with them. */
import { may, post } from "../core/api.js";
import { number, plural } from "../core/format.js";
import { href } from "../core/router.js";
import { html } from "../core/view.js";
import { Age, Button, Empty, heads, Meter, Place, Toggle } from "./basics.js";
import { openConfirm } from "./confirm.js";
import { text } from "./text.js";

/** @param {{resource: any, brief?: boolean}} props `brief`: for the overview, without actions */
export function Queues({ resource, brief = false }) {
  const acts = !brief && may("operate");
  /** @param {any} queue */
  const path = (queue) => `_queues/${encodeURIComponent(queue.name)}`;
  /** @param {any} queue */
  const toggle = (queue) => {
    const label = queue.paused ? "Resume" : "Pause";
    openConfirm({ title: `${label} the queue ${queue.name}`, label, effect: queue.paused ? "Workers claim the runs of this queue again." : "Workers claim no more runs of this queue. Runs that are held continue.", done: resource.refresh, run: (reason) => post(`${path(queue)}/${label.toLowerCase()}`, { reason }) });
  };
  /** @param {any} queue */
  const move = (queue) => openConfirm({ title: `Move the runs of ${queue.name}`, label: "Move", effect: `${plural(queue.due, "run")} of this queue that no worker holds are moved to the other queue.`, fields: [{ key: "to", label: "To the queue", initial: "default" }], done: resource.refresh, run: (reason, { to }) => post(`${path(queue)}/move`, { to, reason }) });
  /** @param {any} queue */
  const row = (queue, most = 1) => {
    const served = queue.workers > 0;
    const state = served ? "ink2" : "state";
    return html`<tr class=${served ? "" : "s-errored"}>${acts ? html`<td><${Toggle} label=${`Queue ${queue.name}`} checked=${!queue.paused} onChange=${() => toggle(queue)} /></td>` : null}<td class="mono cut"><a class="link" href=${href(["runs"], { q: `queue:${queue.name}` })}>${text(queue.name, 60)}</a></td><td class="num">${number(queue.due)}</td><td><${Meter} share=${queue.due / most} state=${served || !queue.due ? "" : "errored"} /></td><td class=${`num ${state}`}>${queue.paused ? html`<span class="state s-paused">paused</span>` : html`<${Age} at=${queue.oldestDue} />`}</td>${brief ? null : html`<td class="num ink2 wide-only">${number(queue.running)}</td>`}<td class=${`num ${state}`}>${queue.workers || "none"}</td></tr>`;
  };
  return html`<section class="card"><header><h2>Queues</h2>${brief ? html`<a class="right ink3" href=${href(["flow"])}>all ${resource.data?.queues.length}</a>` : null}</header><${Place} resource=${resource} rows=${2}>${(/** @type {any} */ data) => {
    /** @type {any[]} */
    const queues = data.queues.slice(0, brief ? 6 : undefined);
    const most = Math.max(1, ...queues.map((queue) => queue.due));
    const deserted = brief ? null : queues.find((queue) => queue.due && !queue.workers);
    if (!queues.length) return html`<${Empty} sentence="No run is queued." />`;
    return html`<table class=${`table ${brief ? "plain" : ""}`}>${heads(acts && ".on|slim", "queue", "due|two-wide", "oldest|num", !brief && "held|num wide-only", "workers|num")}<tbody>${queues.map((queue) => row(queue, most))}</tbody></table>
      ${deserted ? html`<div class="panel"><div class="notice s-errored"><span><code>holdfast worker shop:app --queue ${text(deserted.name, 60)}</code><br />No worker claims from <code>${text(deserted.name, 60)}</code>. Start one, or move its runs.</span>${acts ? html`<span class="right"><${Button} label="Move its runs…" onClick=${() => move(deserted)} /></span>` : null}</div></div>` : null}`;
  }}<//></section>`;
}
