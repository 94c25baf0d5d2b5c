/** The table of runs. */
import { useNow } from "../core/clock.js";
import { duration, toMs } from "../core/format.js";
import { runHref } from "../core/router.js";
import { html } from "../core/view.js";
import { nextMove } from "./actions.js";
import { Age, Moment } from "./basics.js";
import { runState, Status } from "./status.js";
import { text } from "./text.js";
import { WhyLine } from "./why.js";

/** @type {Record<string, string>} optional columns */
export const COLUMNS = { duration: "duration", ended: "ended", version: "version", queue: "queue", owner: "held by", error: "error" };

const DAY = 864e5;

/** The position of a duration on a logarithmic scale from 10 ms to a day, 0 to 1. @param {number} ms */
function logScale(ms) {
  return Math.min(1, Math.max(0.04, Math.log(Math.max(ms, 10) / 10) / Math.log(DAY / 10)));
}

/** @param {{run: any, state: string}} props */
function DurationBar({ run, state }) {
  const now = useNow();
  const from = toMs(run.meta?.startedAt ?? run.createdAt);
  const ms = (run.meta?.completedAt ? toMs(run.meta.completedAt) : now) - from;
  return html`<span class=${`row duration s-${state}`}><svg width="82" height="12" aria-hidden="true"><rect class="rail" x="0" y="4" width="82" height="4" rx="2" /><rect class="bar" x="0" y="3.5" width=${82 * logScale(ms)} height="5" rx="2" /></svg><span class="nowrap ink2">${duration(run.meta?.completedAt ? ms : Math.round(ms / 1000) * 1000)}</span></span>`;
}

/** @param {{run: any, column: string, state: string}} props */
function Cell({ run, column, state }) {
  const meta = run.meta ?? {};
  if (column === "duration") return html`<${DurationBar} run=${run} state=${state} />`;
  if (column === "ended") return html`<${Moment} at=${meta.completedAt} />`;
  if (column === "error") return html`<span class="cut">${text(run.details.error?.name ?? "–", 80)}</span>`;
  if (column.startsWith("search.")) return html`<span class="cut">${text(formatAttribute(meta.search?.[column.slice(7)]), 60)}</span>`;
  return html`<span class="cut mono">${text(meta[column] ?? "–", 60)}</span>`;
}

/** @param {any} value */
function formatAttribute(value) {
  if (value == null) return "–";
  return typeof value === "number" ? value.toLocaleString("en-US") : String(value);
}

/** A run of a list as the target of actions. @param {any} run */
export function targetOf(run) {
  return { workflow: run.workflowName, id: run.id, status: run.details.status, kind: run.meta?.kind, whyParts: run.meta?.whyParts, runNumber: run.meta?.runNumber };
}

/** The step and the line that raised the error of a run. @param {{parts: any}} props */
function Origin({ parts }) {
  if (parts?.kind !== "ended" || !parts.position) return null;
  return html`<span class="cut ink2 origin">${parts.stepKey ? html`in step <code>${text(parts.name ?? parts.stepKey, 100)}</code> ` : null}at <code>${text(parts.position.file, 100)}:${parts.position.line}</code></span>`;
}

/** The next action of a row. @param {{run: any, onAct: (run: any) => void}} props */
function RowMove({ run, onAct }) {
  const move = nextMove(targetOf(run));
  return move && html`<button type="button" class="move" aria-label=${`${move.label} ${run.workflowName}/${run.id}`} onClick=${() => onAct(run)}>${move.label}</button>`;
}

/**
 * @param {{rows: any[], columns: string[], selected: Set<string>, whole: boolean, gone: Set<string>, at: number, selectable: boolean, onToggle: (pid: string) => void, onAll: () => void, onAct: (run: any) => void}} props
 */
export function RunTable({ rows, columns, selected, whole, gone, at, selectable, onToggle, onAll, onAct }) {
  const shown = columns.filter((column) => column in COLUMNS || column.startsWith("search."));
  const all = whole || (rows.length > 0 && selected.size === rows.length);
  return html`<table class="table runs"><thead><tr>${selectable ? html`<th class="tick" scope="col"><input type="checkbox" class="check" aria-label="Select all runs of this page" checked=${all} indeterminate=${!all && selected.size > 0} onChange=${onAll} /></th>` : null}
    <th scope="col" class="c-status">status</th><th scope="col" class="c-run">run</th><th scope="col">why</th>${shown.map((column) => html`<th scope="col" class=${`c-${column.startsWith("search.") ? "attribute" : column}`}>${text(column === "duration" ? "duration, log scale" : COLUMNS[column] ?? column.slice(7), 40)}</th>`)}<th scope="col" class="num c-age">started</th></tr></thead>
    <tbody>${rows.map((run, index) => {
      const pid = `${run.workflowName}/${run.id}`;
      const state = runState(run.details.status, run.meta?.whyParts);
      const checked = whole || selected.has(pid);
      return html`<tr key=${pid} data-row=${index} class=${`${index === at ? "at" : ""} ${checked ? "selected" : ""} ${gone.has(pid) ? "gone" : ""}`}>
        ${selectable ? html`<td class="tick"><input type="checkbox" class="check" aria-label=${`Select ${pid}`} checked=${checked} onChange=${() => onToggle(pid)} /></td>` : null}
        <td class="c-status"><span key=${run.changedAt ?? 0} class=${run.changedAt ? "changed" : ""}><${Status} state=${state} /></span></td>
        <td class="c-run"><a class="mono cut run-link" href=${runHref(run.workflowName, run.id)} title=${pid}><span class="ink3">${text(run.workflowName, 64)}/</span>${text(run.id, 100)}</a></td>
        <td class="c-why"><div class="row"><${WhyLine} why=${run.why ?? ""} /><${Origin} parts=${run.meta?.whyParts} /><${RowMove} run=${run} onAct=${onAct} /></div></td>
        ${shown.map((column) => html`<td class=${`c-${column.startsWith("search.") ? "attribute" : column}`}><${Cell} run=${run} column=${column} state=${state} /></td>`)}
        <td class="num ink2 c-age"><${Age} at=${run.createdAt} /></td></tr>`;
    })}</tbody></table>`;
}
