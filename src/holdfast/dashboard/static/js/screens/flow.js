/** Flow: schedules, limits and queues. */
import { get, may, post, put } from "../core/api.js";
import { duration, number, plural } from "../core/format.js";
import { usePolling, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { html, useState } from "../core/view.js";
import { Age, Button, Empty, IconButton, Meter, Place, Toggle } from "../parts/basics.js";
import { openConfirm } from "../parts/confirm.js";
import { Schedules } from "../parts/schedules.js";
import { text } from "../parts/text.js";

export function Screen() {
  const queues = useResource("queues", (signal) => get("_queues", {}, signal));
  const limits = useResource("limits", (signal) => get("_limits", {}, signal));
  usePolling(() => { queues.refresh(); limits.refresh(); }, 5000);
  return html`<h1 class="sr">Flow</h1><${Schedules} /><div class="flow"><${Limits} resource=${limits} /><${Queues} resource=${queues} /></div>`;
}

/** @param {{resource: any}} props */
function Limits({ resource }) {
  if (resource.error?.code === "NOT_FOUND") return null;
  return html`<section class="card"><header><h2>Limits</h2><span class="ink3">enforced over all workers</span></header><${Place} resource=${resource}>${(/** @type {any} */ data) => (data.limits.length ? html`<table class="table"><thead><tr><th scope="col">limit</th><th scope="col">in use</th><th scope="col" class="wide-only">rate</th><th scope="col" class="num">waiting</th><th scope="col" class="wide-only">order</th><th scope="col" class="num step">concurrency</th></tr></thead>
    <tbody>${data.limits.map((/** @type {any} */ limit) => html`<${LimitRow} key=${limit.name} limit=${limit} refresh=${resource.refresh} />`)}</tbody></table>` : html`<${Empty} sentence="This app has no limits." command=${'app.limit("bank", concurrency=5)'} />`)}<//></section>`;
}

const MOST_SLOTS = 20;

/** A duration as the server reads it, not rounded. @param {number} ms */
const exact = (ms) => (ms % 1000 ? `${ms} ms` : ms % 60_000 ? `${ms / 1000} s` : `${ms / 60_000} min`);

/** @param {{limit: any, refresh: () => void}} props */
function LimitRow({ limit, refresh }) {
  const { used } = limit;
  const allowed = limit.concurrency;
  const [wanted, setWanted] = useState(/** @type {number | null} */ (null));
  const apply = () => openConfirm({ title: `Limit ${limit.name}: ${allowed} to ${wanted}`, label: "Apply", effect: `${Number(wanted) > allowed ? `${Number(wanted) - allowed} more may start at once` : "Running steps continue; new ones wait until fewer are in use"}. Every worker sees the new value.`, run: (reason) => put(`_limits/${encodeURIComponent(limit.name)}`, { concurrency: wanted, ...(reason ? { reason } : {}) }), done: () => { setWanted(null); refresh(); } });
  const rated = limit.rate ? `${number(limit.rate.count)} / ${duration(limit.rate.perMs)}` : "no rate";
  const changeRate = () => openConfirm({ title: `Rate of the limit ${limit.name}: ${rated}`, label: "Apply", effect: "At most as many start in each such time, for all workers. Without a count the limit has no rate.", done: refresh,
    fields: [{ key: "count", label: "Starts", initial: String(limit.rate?.count ?? "") }, { key: "per", label: "In the time of", hint: "as 500 ms, 1 minute", initial: exact(limit.rate?.perMs ?? 60_000) }],
    run: (reason, { count, per }) => put(`_limits/${encodeURIComponent(limit.name)}`, { rate: count.trim() ? { count: Number(count), per, ...(limit.rate && limit.rate.burst !== limit.rate.count ? { burst: limit.rate.burst } : {}) } : null, ...(reason ? { reason } : {}) }) });
  return html`<tr><td class="mono">${text(limit.name, 60)}</td><td>${allowed == null ? html`<span class="ink3">no limit</span>` : limit.keys > 1 ? html`<${Meter} share=${used / (allowed * limit.keys)} state="active" />` : allowed <= MOST_SLOTS ? html`<span class="slots" aria-hidden="true">${Array.from({ length: allowed }, (_, index) => html`<i class=${index < used ? "used" : ""}></i>`)}</span>` : html`<${Meter} share=${used / allowed} state="active" />`}<span class="small ink2">${limit.keys > 1 ? `${number(used)} in use by ${plural(limit.keys, "key")}${allowed == null ? "" : `, ${number(allowed)} each`}` : `${number(used)}${allowed == null ? "" : ` of ${number(allowed)}`}`}</span></td><td class="ink2 wide-only">${may("operate") ? html`<button type="button" class="link" aria-label=${`Rate of ${limit.name}: ${rated}`} onClick=${changeRate}>${rated}</button>` : rated}</td><td class=${`num ${limit.waiting ? "state s-waiting medium" : ""}`}>${number(limit.waiting)}</td><td class="ink2 wide-only">${limit.fair ? "fair" : "in order"}${limit.changed ? html`, <span class="state s-paused">changed</span>` : null}</td>
    <td class="num">${allowed == null || !may("operate") ? number(allowed) : html`<span class="row end"><span class="stepper"><button type="button" aria-label=${`Less for ${limit.name}`} onClick=${() => setWanted(Math.max(1, (wanted ?? allowed) - 1))}>−</button><input inputmode="numeric" aria-label=${`Concurrency of ${limit.name}`} value=${String(wanted ?? allowed)} onInput=${(/** @type {any} */ event) => setWanted(Math.max(1, Math.floor(Number(event.target.value)) || 1))} /><button type="button" aria-label=${`More for ${limit.name}`} onClick=${() => setWanted((wanted ?? allowed) + 1)}>+</button></span>${wanted !== null && wanted !== allowed ? html`<${Button} primary label="Apply…" onClick=${apply} /><${IconButton} icon="close" label="Undo" onClick=${() => setWanted(null)} />` : null}</span>`}</td></tr>`;
}

/** @param {{resource: any}} props */
function Queues({ resource }) {
  const pausable = resource.data?.queues.some((/** @type {any} */ queue) => queue.paused !== undefined);
  /** @param {any} queue */
  const toggle = (queue) => {
    const action = queue.paused ? "resume" : "pause";
    openConfirm({ title: `${queue.paused ? "Resume" : "Pause"} the queue ${queue.name}`, label: queue.paused ? "Resume" : "Pause", effect: queue.paused ? "Workers take the runs of this queue again." : "Workers take no more runs of this queue. Runs that are held continue.", done: resource.refresh,
      run: (reason) => post(`_queues/${encodeURIComponent(queue.name)}/${action}`, reason ? { reason } : {}) });
  };
  /** @param {any} queue */
  const move = (queue) => openConfirm({ title: `Move the runs of ${queue.name}`, label: "Move", effect: `${plural(queue.due, "run")} of this queue that no worker holds wait in the other queue from now on.`, fields: [{ key: "to", label: "To the queue", initial: "default" }], done: resource.refresh, run: (reason, values) => post(`_queues/${encodeURIComponent(queue.name)}/move`, { to: values.to, ...(reason ? { reason } : {}) }) });
  return html`<section class="card"><header><h2>Queues</h2></header><${Place} resource=${resource}>${(/** @type {any} */ data) => {
    const most = Math.max(1, ...data.queues.map((/** @type {any} */ queue) => queue.due));
    const deserted = data.queues.find((/** @type {any} */ queue) => queue.due && !queue.workers);
    return html`<table class="table"><thead><tr>${may("operate") && pausable ? html`<th scope="col" class="slim"><span class="sr">on</span></th>` : null}<th scope="col">queue</th><th scope="col" colspan="2">due</th><th scope="col" class="num">oldest</th><th scope="col" class="num">held</th><th scope="col" class="num">workers</th></tr></thead><tbody>${data.queues.map((/** @type {any} */ queue) => html`<tr class=${queue.workers ? "" : "s-errored"}>${may("operate") && pausable ? html`<td><${Toggle} label=${`Queue ${queue.name}`} checked=${!queue.paused} onChange=${() => toggle(queue)} /></td>` : null}<td class="mono"><a class="link" href=${href(["runs"], { q: `queue:${queue.name}` })}>${text(queue.name, 60)}</a></td><td class="num">${number(queue.due)}</td><td><${Meter} share=${queue.due / most} state=${queue.workers || !queue.due ? "" : "errored"} /></td><td class=${`num ${queue.workers ? "ink2" : "state"}`}>${queue.paused ? html`<span class="state s-paused">paused</span>` : queue.oldestDue ? html`<${Age} at=${queue.oldestDue} />` : "–"}</td><td class="num ink2">${number(queue.running)}</td><td class=${`num ${queue.workers ? "ink2" : "state"}`}>${queue.workers || "none"}</td></tr>`)}</tbody></table>
      ${deserted ? html`<div class="panel"><div class="notice s-errored"><span><code>holdfast worker shop:app --queue ${text(deserted.name, 60)}</code><br />No worker takes <code>${text(deserted.name, 60)}</code>. Start one, or move its runs.</span>${may("operate") ? html`<span class="right"><${Button} label="Move its runs…" onClick=${() => move(deserted)} /></span>` : null}</div></div>` : null}${data.queues.length ? null : html`<${Empty} sentence="No run is queued." />`}`;
  }}<//></section>`;
}
