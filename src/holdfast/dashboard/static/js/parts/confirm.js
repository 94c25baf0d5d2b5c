/** A sheet that confirms an action on a queue, a schedule, a worker or a limit. */
import { instancePath, post } from "../core/api.js";
import { useKeys } from "../core/keys.js";
import { html, onText, useState } from "../core/view.js";
import { Labelled, Reason } from "./actions.js";
import { Problem } from "./basics.js";
import { closeOverlay, Dialog, openOverlay, toast, SheetButtons, useSubmit } from "./overlay.js";
import { text } from "./text.js";

/** @typedef {{key: string, label: string, hint?: string, initial?: string}} Extra */
/** @typedef {{title: string, label: string, effect: string, run: (reason: string | undefined, values: Record<string, string>) => Promise<any>, done?: () => void, fields?: Extra[]}} Question */

/** @param {Question} question */
export function openConfirm(question) {
  openOverlay(ConfirmSheet, { question });
}

/** Ask before the parked outbound events of a run are delivered again. @param {string} workflow @param {string} id @param {() => void} [done] */
export function openRedeliver(workflow, id, done) {
  openConfirm({ title: `Redeliver the parked events of ${workflow}/${id}`, label: "Redeliver", effect: "The parked events are delivered again, in order, beginning with attempt 1.", run: (reason) => post(instancePath(workflow, id, "outbox/redeliver"), { reason }), done });
}

/** @param {{question: Question}} props */
function ConfirmSheet({ question }) {
  const [reason, setReason] = useState("");
  const [values, setValues] = useState(Object.fromEntries((question.fields ?? []).map((field) => [field.key, field.initial ?? ""])));
  const { submit, busy, problem } = useSubmit(async () => {
    await question.run(reason || undefined, values);
    closeOverlay();
    toast(`${question.label}: done`);
    question.done?.();
  });
  useKeys({ "Ctrl+Enter": () => void submit(), Escape: closeOverlay });
  return html`<${Dialog} label=${question.title}><header><span class="cut">${text(question.title, 160)}</span></header><div class="body"><div class="notice"><span>${text(question.effect)}</span></div>
    ${(question.fields ?? []).map((field) => html`<${Labelled} label=${field.label} hint=${field.hint}><input class="input mono" value=${values[field.key]} onInput=${onText((value) => setValues((old) => ({ ...old, [field.key]: value })))} /><//>`)}
    <${Reason} value=${reason} onChange=${setReason} />
    ${problem ? html`<${Problem} error=${problem} />` : null}</div>
    <${SheetButtons} label=${question.label} disabled=${busy} onClick=${submit} /><//>`;
}
