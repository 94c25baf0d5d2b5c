/** The picture of a chain's run: its steps with the pointer, the chosen step, outputs, mailbox and outbox. */
import { useNow } from "../core/clock.js";
import { clock, clockMs, duration, moment } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect } from "../core/view.js";
import { openAction, possible } from "../parts/actions.js";
import { Button, Empty, Meter, Moment, Place } from "../parts/basics.js";
import { ErrorView } from "../parts/error.js";
import { brief, Json } from "../parts/json.js";
import { Glyph, stateOf, Status } from "../parts/status.js";
import { shortWorker, text } from "../parts/text.js";

/** @param {any} props */
export function Tab({ path, live, run, runNumber, target, onParked }) {
  const { query } = useStore(route);
  const now = useNow();
  const chain = useGet(path("chain"), { runNumber }, `${live?.version} ${live?.status} ${live?.events} ${live?.outbox}`);
  const current = runNumber === target.runNumber;
  const parked = chain.data?.outbox.filter((/** @type {any} */ event) => current && event.state === "parked").map((/** @type {any} */ event) => event.type) ?? [];
  useEffect(() => onParked({ types: [...new Set(parked)], done: chain.refresh }), [parked.join(" ")]);
  return html`<${Place} resource=${chain}>${(/** @type {any} */ data) => {
    /** @type {any[]} */
    const steps = data.steps;
    const chosen = steps.find((step) => step.type === query.get("step")) ?? steps[data.pointer ?? steps.length - 1] ?? steps[0];
    const done = steps.filter((step) => step.state === "DONE");
    return html`<div class="chain-strip"><b>${done.length} of ${steps.length}</b> <span class="ink2">steps done</span><div class="chain-steps">${steps.map((step, index) => html`${index ? html`<span class=${`chain-link s-${stateOf(steps[index - 1].state === "DONE" ? "DONE" : "PENDING")}`}></span>` : null}<${StepCard} step=${step} now=${now} chosen=${step === chosen} />`)}</div></div>
      <div class="columns"><div><${Chosen} step=${chosen} now=${now} target=${current && target} /></div>
        <div><h3>Input</h3><${Json} value=${run.meta.params} /><h3>Outputs <span class="ink3"><code>task.outputs</code> of later steps</span></h3>${done.map((step) => html`<div class="outbox-row output"><code>${text(step.type, 80)}</code><span class="mono ink2">${brief(step.result, 200)}</span></div>`)}</div>
        <div><${Outbox} events=${data.outbox} /></div></div>`;
  }}<//>`;
}

/** @param {{step: any, now: number, chosen: boolean}} props */
function StepCard({ step, now, chosen }) {
  const state = stateOf(step.state);
  return html`<button type="button" class=${`chain-step s-${state}`} aria-pressed=${String(chosen)} onClick=${() => setQuery({ step: step.type })}><span class="row between"><span><span class="chip">${step.seq + 1}</span> <code class="state medium">${text(step.type, 40)}</code></span><${Glyph} state=${state} /></span>
    <span class="row between"><span class="state">${step.state}</span><span class="ink2">${step.start ? duration((step.end ?? now) - step.start) : ""}</span></span>
    <span class="row between small ink3">${step.start ? html`<span>${clock(step.start)}</span>` : null}<span>${step.state === "PENDING" ? `up to ${step.maxAttempts ?? "∞"} attempts` : `attempt ${(step.attempts ?? 0) + (step.state === "DEAD" ? 0 : 1)} of ${step.maxAttempts ?? "∞"}`}</span></span>
    ${step.state === "WAITING" && step.wakeAt ? html`<span class="chip mono">until ${moment(step.wakeAt, now)}</span>` : step.result !== undefined && step.state === "DONE" ? html`<span class="chip mono"><span class="cut">${brief(step.result, 30)}</span></span>` : null}</button>`;
}

/** @param {{step: any, now: number, target: any}} props `target`: false for an earlier run, which takes no actions */
function Chosen({ step, now, target }) {
  const open = target && ["WAITING", "READY", "RUNNING"].includes(step.state);
  const [since, until] = [step.start, step.wakeAt];
  return html`<div class="row between"><span class="row"><code class="medium">${text(step.type, 80)}</code><${Status} state=${step.state} word=${step.state} /></span>${open && possible("resolve", target) ? html`<${Button} label="Resolve by hand…" onClick=${() => openAction("resolve", target, { initial: { stepKey: step.type } })} />` : null}</div>
    <dl class="pairs">${step.eventType ? html`<dt>waits for</dt><dd class="mono">${text(step.eventType, 100)}</dd>` : null}<dt>since</dt><dd>${since ? moment(since, now) : "–"}</dd>${until ? html`<dt>until</dt><dd>${moment(until, now)}</dd>` : null}<dt>failed attempts</dt><dd>${step.attempts ?? 0} of ${step.maxAttempts ?? "∞"}</dd>${step.nextRetryAt ? html`<dt>retry</dt><dd>${moment(step.nextRetryAt, now)}</dd>` : null}</dl>
    ${since && until && open ? html`<${Meter} share=${(now - since) / Math.max(1, until - since)} state="waiting" />` : null}${step.error ? html`<${ErrorView} error=${step.error} />` : null}
    ${step.calls.length ? html`<h3>Calls of the handler</h3>${step.calls.slice(-20).map((/** @type {any} */ call) => html`<div class="row"><span class="mono ink3">${clockMs(call.start)}</span><${Status} state=${call.outcome === "ok" ? "complete" : call.outcome === "running" ? "active" : "errored"} word=${call.error ? text(call.error.name, 60) : call.end === null && step.state === "WAITING" ? "waits" : call.outcome} /><span class="mono ink3 cut">${call.worker ? shortWorker(call.worker) : ""}</span><span class="right ink2">${duration(call.end === null ? null : call.end - call.start)}</span></div>`)}` : null}
    ${step.eventType && open && possible("event", target) ? html`<div><${Button} icon="send" label=${`Send ${text(step.eventType, 40)}…`} hint="E" onClick=${() => openAction("event", target, { initial: { type: step.eventType } })} /></div>` : null}`;
}

/** @param {{events: any[]}} props */
function Outbox({ events }) {
  const parked = events.filter((event) => event.state === "parked").length;
  return html`<div class="row wrap between"><h3>Outbox <span class="ink3">delivered in order, at least once</span></h3>${parked ? html`<span class="state s-paused nowrap">${parked} parked</span>` : null}</div>
    ${events.length ? events.slice(-100).map((event) => html`<div class="outbox-row"><div class="row"><${Glyph} state=${event.state === "delivered" ? "complete" : event.state === "parked" ? "parked" : "waiting"} /><code class="medium cut">${text(event.type, 100)}</code><span class="right ink2">${event.state}</span></div><div class="row ink3 small"><span>from <code>${text(event.step, 80)}</code></span><${Moment} at=${event.deliveredAt ?? event.parkedAt ?? event.createdAt} /><span class="right">${event.attempts ? `${event.attempts} failed ${event.attempts === 1 ? "attempt" : "attempts"}` : "1st attempt"}</span></div>${event.error ? html`<p class="notice s-paused mono">${text(typeof event.error === "string" ? event.error : `${event.error.name}: ${event.error.message}`, 500)}</p>` : null}</div>`) : html`<${Empty} sentence="This chain has sent nothing." />`}`;
}
