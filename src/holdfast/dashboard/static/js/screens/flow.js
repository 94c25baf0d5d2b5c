/** Flow: schedules, limits and queues. */
import { may, put } from "../core/api.js";
import { duration, number, plural } from "../core/format.js";
import { useGet, usePolling } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useState } from "../core/view.js";
import { Age, Button, Empty, heads, IconButton, Meter, Place } from "../parts/basics.js";
import { openConfirm } from "../parts/confirm.js";
import { Queues } from "../parts/queues.js";
import { Schedules } from "../parts/schedules.js";
import { text } from "../parts/text.js";

const POLL = 5000;

export function Screen() {
  const queues = useGet("_queues");
  const limits = useGet("_limits");
  const { query } = useStore(route);
  usePolling(() => { queues.refresh(); limits.refresh(); }, POLL);
  /** @type {any[]} */
  const all = limits.data?.limits ?? [];
  const chosen = all.find((limit) => limit.name === query.get("limit")) ?? all.find((limit) => limit.keys > 1);
  return html`<h1 class="sr">Flow</h1><${Schedules} /><div class=${`flow ${chosen ? "keyed" : ""}`}><${Limits} resource=${limits} chosen=${chosen} />${chosen ? html`<${Keys} key=${chosen.name} limit=${chosen} />` : null}<${Queues} resource=${queues} /></div>`;
}

/** @param {{resource: any, chosen: any}} props */
function Limits({ resource, chosen }) {
  if (resource.error?.code === "NOT_FOUND") return null;
  return html`<section class="card"><header><h2>Limits</h2><span class="ink3">enforced over all workers</span></header><${Place} resource=${resource}>${(/** @type {any} */ data) => (data.limits.length ? html`<table class="table">${heads("limit", "in use", "rate|wide-only", "waiting|num", "oldest|num wide-only", "concurrency|num step")}
    <tbody>${data.limits.map((/** @type {any} */ limit) => html`<${LimitRow} key=${limit.name} limit=${limit} at=${limit === chosen} refresh=${resource.refresh} />`)}</tbody></table>` : html`<${Empty} sentence="This app has no limits." command=${'app.limit("bank", concurrency=5)'} />`)}<//></section>`;
}

const MOST_SLOTS = 20;

/** A slot for each permit; those between the present and the wanted maximum are dashed. @param {{used: number, allowed: number, wanted?: number | null}} props */
function Slots({ used, allowed, wanted }) {
  if (Math.max(allowed, wanted ?? 0) > MOST_SLOTS) return html`<${Meter} share=${used / allowed} state="active" />`;
  return html`<span class="slots" aria-hidden="true">${Array.from({ length: Math.max(allowed, wanted ?? 0) }, (_, index) => html`<i class=${index < used ? "used" : index >= allowed ? "more" : ""}></i>`)}</span>`;
}

/** A duration as the server reads it, not rounded. @param {number} ms */
const exact = (ms) => (ms % 1000 ? `${ms} ms` : ms % 60_000 ? `${ms / 1000} s` : `${ms / 60_000} min`);

/** The time of a rate without a count of one: `10 / s`. @param {any} rate */
const per = (rate) => duration(rate.perMs).replace(/^1 /, "");

/** @param {{limit: any, at: boolean, refresh: () => void}} props */
function LimitRow({ limit, at, refresh }) {
  const { used, rate } = limit;
  const allowed = limit.concurrency;
  const [wanted, setWanted] = useState(/** @type {number | null} */ (null));
  const path = `_limits/${encodeURIComponent(limit.name)}`;
  const apply = () => openConfirm({ title: `Limit ${limit.name}: ${allowed} to ${wanted}`, label: "Apply", effect: `${Number(wanted) > allowed ? `${Number(wanted) - allowed} more may start at once` : "Running steps continue; new ones wait until fewer are in use"}. The new value applies to all workers.`, run: (reason) => put(path, { concurrency: wanted, reason }), done: () => { setWanted(null); refresh(); } });
  const rated = rate ? `${number(rate.used)} of ${number(rate.burst)}${rate.burst === rate.count ? "" : `, ${number(rate.count)}`} / ${per(rate)}` : "no rate";
  const changeRate = () => openConfirm({ title: `Rate of the limit ${limit.name}: ${rate ? `${number(rate.count)} / ${duration(rate.perMs)}` : rated}`, label: "Apply", effect: "At most this many start in each period, over all workers. Without a number the limit has no rate.", done: refresh,
    fields: [{ key: "count", label: "Starts", initial: String(rate?.count ?? "") }, { key: "per", label: "Period", hint: "such as 500 ms, 1 minute", initial: exact(rate?.perMs ?? 60_000) }],
    run: (reason, values) => put(path, { rate: values.count.trim() ? { count: Number(values.count), per: values.per, ...(rate && rate.burst !== rate.count ? { burst: rate.burst } : {}) } : null, reason }) });
  const each = limit.keys > 1;
  return html`<tr class=${at ? "at" : ""}><td><button type="button" class="mono medium" aria-pressed=${String(at)} onClick=${() => setQuery({ limit: limit.name })}>${text(limit.name, 60)}</button><br /><span class="small ink3">${limit.fair ? "fair" : "in order"}${limit.changed ? html`, <span class="state s-paused">changed</span>` : null}</span></td>
    <td>${allowed == null ? html`<span class="ink3">no limit</span> ` : each ? html`<${Meter} share=${used / (allowed * limit.keys)} state="active" />` : html`<${Slots} used=${used} allowed=${allowed} wanted=${wanted} />`}<span class="small ink2">${allowed == null ? `${number(used)} in use` : each ? `${number(used)} in use, ${number(allowed)} each` : `${number(used)} of ${number(allowed)}`}</span></td>
    <td class="ink2 wide-only">${rate ? html`<${Meter} share=${rate.used / rate.burst} />` : null}${may("operate") ? html`<button type="button" class="link small" aria-label=${`Rate of ${limit.name}: ${rated}`} onClick=${changeRate}>${rated}</button>` : html`<span class="small">${rated}</span>`}</td><td class=${`num ${limit.waiting ? "state s-waiting medium" : ""}`}>${number(limit.waiting)}</td><td class="num ink2 wide-only"><${Age} at=${limit.oldestWaiting} /></td>
    <td class="num">${allowed == null || !may("operate") ? number(allowed) : html`<span class="row end"><span class="stepper"><button type="button" aria-label=${`Less for ${limit.name}`} onClick=${() => setWanted(Math.max(1, (wanted ?? allowed) - 1))}>−</button><input inputmode="numeric" aria-label=${`Concurrency of ${limit.name}`} value=${String(wanted ?? allowed)} onInput=${(/** @type {any} */ event) => setWanted(Math.max(1, Math.floor(Number(event.target.value)) || 1))} /><button type="button" aria-label=${`More for ${limit.name}`} onClick=${() => setWanted((wanted ?? allowed) + 1)}>+</button></span></span>`}</td></tr>
    ${wanted !== null && wanted !== allowed ? html`<tr class="expanded"><td colspan="6"><span class="row"><b class="medium">${allowed} → ${wanted}</b><span class="ink2">${wanted > allowed ? `${wanted - allowed} more may start at once.` : "Running steps continue."}</span><span class="right row"><${IconButton} icon="close" label="Undo" onClick=${() => setWanted(null)} /><${Button} primary label="Apply…" onClick=${apply} /></span></span></td></tr>` : null}`;
}

/** The keys of a limit: what each uses, and what waits for it. @param {{limit: any}} props */
function Keys({ limit }) {
  const keys = useGet(`_limits/${encodeURIComponent(limit.name)}/keys`);
  usePolling(keys.refresh, POLL);
  return html`<section class="card"><header><h2 class="mono">${text(limit.name, 60)}</h2><span class="ink3">waiting by key</span><span class="right ink3">${keys.data ? plural(keys.data.total, "key") : ""}</span></header><${Place} resource=${keys}>${(/** @type {any} */ data) => {
    /** @type {any[]} */
    const found = data.keys;
    const most = Math.max(1, ...found.map((each) => each.waiting));
    return found.length ? html`<table class="table">${heads("key", "in use", "waiting|two-wide", "oldest|num")}<tbody>${found.map((each) => html`<tr><td class="mono cut">${text(each.key, 60) || html`<span class="ink3">no key</span>`}</td><td>${limit.concurrency == null ? number(each.used) : html`<span class="sr">${each.used}</span><${Slots} used=${each.used} allowed=${limit.concurrency} />`}</td><td><${Meter} share=${each.waiting / most} state="waiting" /></td><td class="num">${number(each.waiting)}</td><td class="num ink2"><${Age} at=${each.oldestWaiting} /></td></tr>`)}</tbody></table>` : html`<${Empty} sentence="Nothing uses this limit now." />`;
  }}<//></section>`;
}
