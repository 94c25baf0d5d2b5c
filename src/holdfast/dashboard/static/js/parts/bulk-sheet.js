/** The sheet of a bulk action on the runs of a cause. */
import { post } from "../core/api.js";
import { plural } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { html, onText, useState } from "../core/view.js";
import { Labelled, Reason } from "./actions.js";
import { Problem } from "./basics.js";
import { follow, MANY, useDryRun } from "./bulk.js";
import { closeOverlay, Dialog, openOverlay, toast, SheetButtons, useSubmit } from "./overlay.js";
import { text } from "./text.js";

const EFFECTS = /** @type {Record<string, string>} */ ({ retry: "continue from their history, with fresh attempts", resume: "continue from where they were paused" });

/** @param {string} action @param {Record<string, any>} filter of the cause @param {any} group */
export function openBulk(action, filter, group) {
  openOverlay(BulkSheet, { action, filter: bulkBody(filter), group });
}

/** The query of a list as the filter of a bulk action. @param {Record<string, any>} query */
function bulkBody(query) {
  /** @type {Record<string, any>} */
  const filter = {};
  for (const [key, value] of Object.entries(query)) {
    if (key.startsWith("search.")) (filter.search ??= {})[key.slice(7)] = value;
    else filter[key] = value;
  }
  return filter;
}

/** @param {{action: string, filter: Record<string, any>, group: any}} props */
function BulkSheet({ action, filter, group }) {
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const dry = useDryRun({ action, filter });
  const { count, sample } = dry;
  const label = action === "retry" ? "Retry" : "Resume";
  const ready = count !== null && count > 0 && (count <= MANY || typed === String(count));
  const { submit, busy, problem } = useSubmit(async () => {
    const job = await post("_bulk", { action, filter, dryRun: false, reason: reason || undefined });
    closeOverlay();
    toast(`${label} of ${plural(count ?? 0, "run")} has begun`, { state: "active" });
    void follow(job.id, label, () => undefined);
  });
  useKeys({ "Ctrl+Enter": () => void (ready && submit()) });
  return html`<${Dialog} label=${`${label} the runs of ${group.workflowName}`}><header>${label} <code>${text(group.workflowName, 64)}</code></header><div class="body">
    <div class="notice"><span><b>Dry run:</b> ${count === null ? "counting…" : html`<b>${plural(count, "run")}</b> would ${EFFECTS[action] ?? action}.`} This is written to the audit.</span></div>
    ${sample.length ? html`<p class="ink3 small">such as ${text(sample.slice(0, 3).map((/** @type {any} */ each) => each.id).join(", "), 200)}</p>` : null}
    <${Reason} value=${reason} onChange=${setReason} />
    ${count !== null && count > MANY ? html`<${Labelled} label=${`Type ${count}, the number of runs`}><input class="input" inputmode="numeric" value=${typed} onInput=${onText(setTyped)} /><//>` : null}
    ${problem || dry.error ? html`<${Problem} error=${problem ?? dry.error} onRetry=${problem ? undefined : dry.refresh} />` : null}</div>
    <${SheetButtons} label=${`${label} ${count === null ? "" : plural(count, "run")}`} disabled=${!ready || busy} onClick=${submit} /><//>`;
}
