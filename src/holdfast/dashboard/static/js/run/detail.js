/** The panel beside the waterfall: everything about the selected step. */
import { get, instancePath } from "../core/api.js";
import { clockMs, duration, moment, plural, size, toMs } from "../core/format.js";
import { useGet, useResource } from "../core/resource.js";
import { runHref, splitPid } from "../core/router.js";
import { html } from "../core/view.js";
import { possible } from "../parts/actions.js";
import { Button, IconButton, Place } from "../parts/basics.js";
import { ErrorView } from "../parts/error.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { LogLines } from "../parts/log-lines.js";
import { toast } from "../parts/overlay.js";
import { Status } from "../parts/status.js";
import { shortWorker, text } from "../parts/text.js";
import { attemptsOf, iconOf } from "./model.js";

/** @typedef {import("./model.js").Item} Item */

/** @param {string} message */
export async function copy(message) {
  try {
    await navigator.clipboard.writeText(message);
    toast("Copied");
  } catch {
    toast("The browser does not allow copying", { state: "errored" });
  }
}

/** @param {{item: Item, pid: string, runNumber?: number, now: number, act: (name: string) => void, target: any, onClose: () => void}} props */
export function Detail({ item, pid, runNumber, now, act, target, onClose }) {
  const { workflow, id } = splitPid(pid);
  const step = useGet(instancePath(workflow, id, "step"), { key: item.key, runNumber }, `${item.status} ${item.attempts?.length}`);
  const own = pid === `${target.workflow}/${target.id}`;
  const waitsForEvent = item.type === "waitForEvent" && item.end === null;
  return html`<aside class="detail" aria-label=${`Detail of ${item.name}`}><header class="row"><${Icon} name=${iconOf({ kind: "step", item, id: "", level: 1, name: "", start: 0, end: null, pid })} /><h2 class="mono cut">${text(item.name, 200)}</h2><${Status} state=${item.status === "waiting" && item.attempts?.length ? "retrying" : item.status} word=${item.status} /><span class="right"><${IconButton} icon="close" label="Close the detail" onClick=${onClose} /></span></header>
    <div class="detail-body"><section><${Pairs} item=${item} now=${now} /></section>
      ${attemptsOf(item).length ? html`<section><h3>Attempts</h3><${Attempts} item=${item} now=${now} /></section>` : null}
      <${Place} resource=${step} rows=${3}>${(/** @type {any} */ data) => html`<${Outcome} step=${data.step} />`}<//>
      <${StepLogs} pid=${pid} item=${item} runNumber=${runNumber} /></div>
    <footer class="row">${own && waitsForEvent && possible("event", target) ? html`<${Button} primary icon="send" label=${`Send ${text(item.eventType ?? "event", 30)}…`} hint="E" onClick=${() => act("event")} />` : null}
      ${own && possible("fork", target) ? html`<${Button} icon="fork" label="Fork from here…" onClick=${() => act("fork")} />` : null}${item.child ? html`<a class="button" href=${runHref(splitPid(item.child).workflow, splitPid(item.child).id)}>Open the child</a>` : null}
      <${Button} quiet label="Copy link" onClick=${() => copy(location.href)} /><kbd class="right">F</kbd></footer></aside>`;
}

/** The run itself: its times, params, memo, result and error. @param {{run: any, pid: string, now: number, act: (name: string) => void, target: any, onClose: () => void}} props */
export function RunDetail({ run, pid, now, act, target, onClose }) {
  const { meta, details } = run;
  const end = meta.completedAt ? toMs(meta.completedAt) : null;
  const times = /** @type {[string, any][]} */ ([["created", meta.createdAt], ["started", meta.startedAt], ["ended", meta.completedAt]]).filter(([, at]) => at);
  return html`<aside class="detail" aria-label=${`Detail of ${pid}`}><header class="row"><${Icon} name="code" /><h2 class="mono cut">${text(pid, 200)}</h2><${Status} state=${target.status} /><span class="right"><${IconButton} icon="close" label="Close the detail" onClick=${onClose} /></span></header>
    <div class="detail-body"><section><dl class="pairs">${times.map(([term, at]) => html`<dt>${term}</dt><dd>${moment(at, now)}</dd>`)}<dt>${end === null ? "for" : "took"}</dt><dd>${duration((end ?? now) - toMs(meta.startedAt ?? meta.createdAt))}</dd>${meta.queue ? html`<dt>queue</dt><dd class="mono">${text(meta.queue, 100)}</dd>` : null}</dl></section>
      <${Value} title="Params" value=${meta.params} />${meta.memo == null ? null : html`<${Value} title="Memo" value=${meta.memo} />`}
      ${details.status === "complete" ? html`<${Value} title="Result" value=${details.output} />` : null}${details.error ? html`<section><h3>Error</h3><${ErrorView} error=${details.error} /></section>` : null}</div>
    <footer class="row">${possible("fork", target) ? html`<${Button} icon="fork" label="Fork…" onClick=${() => act("fork")} />` : null}<${Button} quiet label="Copy link" onClick=${() => copy(location.href)} /></footer></aside>`;
}

/** @param {{title: string, value: any}} props */
function Value({ title, value }) {
  const json = JSON.stringify(value ?? null, null, 2);
  return html`<section><div class="row between"><h3>${title} <span class="ink3">${size(json.length)}</span></h3><${IconButton} icon="copy" label=${`Copy: ${title}`} onClick=${() => copy(json)} /></div><${Json} value=${value ?? null} /></section>`;
}

/** @param {{item: Item, now: number}} props */
function Pairs({ item, now }) {
  const waits = item.type === "waitForEvent" || item.type === "sleep";
  /** @type {[string, any][]} */
  const pairs = [];
  if (item.eventType) pairs.push(["for", html`an event of type <code>${text(item.eventType, 100)}</code>`]);
  if (!waits && attemptsOf(item).length) pairs.push(["attempt", `${attemptsOf(item).length}${item.maxAttempts ? ` of ${item.maxAttempts}` : ""}`]);
  pairs.push([waits ? "since" : "started", `${moment(item.start, now)}`], [item.end === null ? "for" : "took", duration((item.end ?? now) - item.start)]);
  if (item.wakeAt) pairs.push(["until", `${moment(item.wakeAt, now)}${item.wakeAt > now && item.end === null ? `, in ${duration(item.wakeAt - now)}` : ""}`]);
  if (item.child) pairs.push(["child", html`<a class="link mono" href=${runHref(splitPid(item.child).workflow, splitPid(item.child).id)}>${text(item.child, 160)}</a>`]);
  pairs.push(["key", html`<code>${text(item.key, 300)}</code>`]);
  return html`<dl class="pairs">${pairs.map(([term, value]) => html`<dt>${term}</dt><dd>${value}</dd>`)}</dl>`;
}

const WORDS = { ok: "completed", failed: "failed", lost: "worker lost", running: "running" };
const STATES = { ok: "complete", failed: "errored", lost: "errored", running: "active" };

/** @param {{item: Item, now: number}} props */
function Attempts({ item, now }) {
  return html`<ol class="attempts">${attemptsOf(item).slice(-50).map((attempt) => html`<li><div class="row"><span class=${`attempt-dot s-${STATES[attempt.outcome]}`}>${attempt.n}</span><span class="mono ink2">${clockMs(attempt.start)}</span>
    <span class=${`state s-${STATES[attempt.outcome]} cut`}>${attempt.outcome === "failed" ? text(attempt.error?.name ?? "failed", 100) : WORDS[attempt.outcome]}</span>${attempt.worker ? html`<code class="ink3 cut">${shortWorker(attempt.worker)}</code>` : null}<span class="right ink2 nowrap">${duration((attempt.end ?? now) - attempt.start)}</span></div>
    ${attempt.error ? html`<${ErrorView} error=${attempt.error} title=${false} />` : null}</li>`)}</ol>`;
}

/** @param {{step: any}} props */
function Outcome({ step }) {
  const done = step?.status === "completed";
  return html`${done ? html`<${Value} title="Output" value=${step.result} />` : null}
    ${step?.error ? html`<section><h3>Error</h3><${ErrorView} error=${step.error} /></section>` : null}
    ${step?.progress !== undefined ? html`<section><h3>Progress <span class="ink3">heartbeat ${moment(step.heartbeatAt)}</span></h3><${Json} value=${step.progress} /></section>` : null}`;
}

const LOG_PAGES = 3;

/** Log lines of the step, from the first pages of the log. @param {{pid: string, item: Item, runNumber?: number}} props */
function StepLogs({ pid, item, runNumber }) {
  const { workflow, id } = splitPid(pid);
  const logs = useResource(`${pid} ${runNumber} logs ${item.status}`, async (signal) => {
    const lines = [];
    let logsCursor;
    for (let page = 0; page < LOG_PAGES; page += 1) {
      const answer = await get(instancePath(workflow, id, "history"), { includeLogs: true, pageSize: 100, logsCursor, runNumber }, signal);
      lines.push(...answer.logs);
      logsCursor = answer.logsCursor;
      if (!answer.logsHasNextPage) break;
    }
    return lines;
  });
  const own = logs.data?.filter((/** @type {any} */ line) => line.stepKey === item.key && !line.isReplay) ?? [];
  if (!own.length) return null;
  return html`<section><h3>Logs <span class="ink3">${plural(own.length, "line")}</span></h3><${LogLines} lines=${own.slice(0, 100)} brief=${true} /></section>`;
}
