/** A sheet that asks before an action on something that is not a run: a queue, a schedule, a worker, a limit. */
import { instancePath, post } from "../core/api.js";
import { useKeys } from "../core/keys.js";
import { html, useState } from "../core/view.js";
import { Labelled } from "./actions.js";
import { Button, Problem } from "./basics.js";
import { closeOverlay, Dialog, openOverlay, toast } from "./overlay.js";
import { text } from "./text.js";

/** @typedef {{key: string, label: string, hint?: string, initial?: string}} Extra */
/** @typedef {{title: string, label: string, effect: string, run: (reason: string, values: Record<string, string>) => Promise<any>, done?: () => void, fields?: Extra[], reason?: boolean}} Question */

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
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const confirm = async () => {
    try {
      await question.run(reason, values);
      closeOverlay();
      toast(`${question.label}: done`);
      question.done?.();
    } catch (error) {
      setProblem(error);
    }
  };
  useKeys({ "Ctrl+Enter": () => void confirm(), Escape: closeOverlay });
  return html`<${Dialog} label=${question.title}><header><span class="cut">${text(question.title, 160)}</span></header><div class="body"><div class="notice"><span>${text(question.effect)}</span></div>
    ${(question.fields ?? []).map((field) => html`<${Labelled} label=${field.label} hint=${field.hint}><input class="input mono" value=${values[field.key]} onInput=${(/** @type {any} */ event) => setValues((old) => ({ ...old, [field.key]: event.target.value }))} /><//>`)}
    ${question.reason === false ? null : html`<${Labelled} label="Reason" hint="for the audit"><input class="input" autofocus maxlength="2000" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /><//>`}
    ${problem ? html`<${Problem} error=${problem} />` : null}</div>
    <footer><${Button} primary label=${question.label} hint="Ctrl ↵" onClick=${confirm} /><${Button} quiet label="Close" hint="Esc" onClick=${closeOverlay} /></footer><//>`;
}
