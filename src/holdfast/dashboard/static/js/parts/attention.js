/** A cause that needs attention, and its next action. */
import { may } from "../core/api.js";
import { filterText } from "../core/filter.js";
import { number, plural } from "../core/format.js";
import { go, href, runHref } from "../core/router.js";
import { html } from "../core/view.js";
import { openAction } from "./actions.js";
import { Age, Button } from "./basics.js";
import { Spark } from "./charts.js";
import { openRedeliver } from "./confirm.js";
import { Icon } from "./icons.js";
import { openBulk } from "./bulk-sheet.js";
import { Glyph } from "./status.js";
import { text } from "./text.js";
import { Why } from "./why.js";

/** @type {Record<string, {state: string, word: string, icon?: string}>} */
const KINDS = {
  errored: { state: "errored", word: "errored" }, parked: { state: "parked", word: "parked" }, diverged: { state: "parked", word: "does not fit its history" },
  failing: { state: "retrying", word: "failing" }, lost: { state: "errored", word: "loses workers", icon: "chip" }, no_worker: { state: "errored", word: "no worker", icon: "chip" },
  overdue: { state: "retrying", word: "overdue", icon: "clock" }, outbox: { state: "paused", word: "outbox parked", icon: "outbox" },
};

const NAMES = /** @type {Record<string, string>} */ ({ idPrefix: "id", createdAfter: "since", createdBefore: "before", endedAfter: "ended" });

/** The list of the runs of a cause. @param {any} group */
function listOf(group) {
  const conditions = Object.entries(group.filter ?? { workflow: group.workflowName }).map(([key, value]) => ({ key: NAMES[key] ?? key.replace(/^search\./, ""), value: String(value) }));
  return href(["runs"], { q: filterText(conditions) });
}

/** @param {any} group */
function moveOf(group) {
  const many = group.count > 1;
  const count = many ? ` ${number(group.count)}` : "";
  if (group.action === "retry" && may("manage")) return `Retry${count}…`;
  if (group.action === "resume" && may("manage")) return `Resume${count}…`;
  if (group.action === "redeliver" && may("manage") && !many) return "Redeliver…";
  if (group.action === "queue") return "Show queue";
  return many ? "Show runs" : "Open";
}

/**
 * @param {any} group
 * @param {boolean} acts true: open the next action; false: show the runs
 */
export function openCause(group, acts) {
  const sample = group.samples?.[0];
  const single = group.count === 1 && sample;
  const opens = single ? runHref(sample.workflowName ?? group.workflowName, sample.id) : listOf(group);
  if (!acts) return go(opens);
  const bulk = group.action === "retry" || group.action === "resume";
  if (bulk && may("manage")) {
    if (single) return openAction(group.action, { workflow: group.workflowName, id: sample.id, status: group.action === "retry" ? "errored" : "paused" });
    return openBulk(group.action, group.filter, group);
  }
  if (group.action === "redeliver" && single && may("manage")) return openRedeliver(group.workflowName, sample.id);
  return go(group.action === "queue" ? href(["flow"]) : opens);
}

/** @param {{group: any, at: boolean, first: boolean, onPoint: () => void}} props */
export function AttentionRow({ group, at, first, onPoint }) {
  const kind = KINDS[group.kind] ?? { state: "paused", word: group.kind };
  const single = group.count === 1 && group.samples?.[0];
  return html`<li class=${`attention-row s-${kind.state} ${at ? "at" : ""}`} onMouseEnter=${onPoint}><span class="state">${kind.icon ? html`<${Icon} name=${kind.icon} />` : html`<${Glyph} state=${kind.state} size=${16} />`}</span>
    <div class="what"><div class="row wrap"><a class="mono" href=${single ? runHref(single.workflowName ?? group.workflowName, single.id) : listOf(group)}>${text(single ? `${group.workflowName}/${single.id}` : group.workflowName, 120)}</a>${single ? null : html`<b class="strong">${plural(group.count, "run")}</b>`}<span class="state">${kind.word}</span>${group.version ? html`<span class="ink3">since version ${text(group.version, 40)}</span>` : null}</div>
      <${Why} why=${group.why} /></div>
    <span class="trend">${group.series ? html`<${Spark} values=${group.series} state=${kind.state} />` : null}<span class="ink2 nowrap"><${Age} at=${group.since} /></span></span>
    <span class="act"><${Button} primary=${first} label=${moveOf(group)} onClick=${() => openCause(group, true)} /></span></li>`;
}
