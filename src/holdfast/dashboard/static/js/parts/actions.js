/** The actions on a run: the condition and the effect of each, and the sheet that confirms an action. */
import { instancePath, may, post, remove } from "../core/api.js";
import { useKeys } from "../core/keys.js";
import { useGet } from "../core/resource.js";
import { go, href, runHref, splitPid } from "../core/router.js";
import { html, onText, useState } from "../core/view.js";
import { Problem } from "./basics.js";
import { ForkFields } from "./fork-fields.js";
import { SchemaForm, useSchemaForm } from "./form.js";
import { Icon } from "./icons.js";
import { closeOverlay, Dialog, openOverlay, toast, SheetButtons, useSubmit } from "./overlay.js";
import { parseJson } from "../core/schema.js";
import { text } from "./text.js";

/** @typedef {{workflow: string, id: string, status: string, kind?: string, runNumber?: number, whyParts?: any}} Target */
/** @typedef {{label: string, icon: string, key?: string, scope: string, when: (target: Target) => boolean, effect: (target: Target) => string, danger?: boolean}} Action */

const ENDED = new Set(["complete", "errored", "cancelled", "terminated"]);
/** @param {Target} target */
const open = (target) => !ENDED.has(target.status);
/** @param {Target} target */
const ended = (target) => ENDED.has(target.status);

/** @type {Record<string, Action>} */
export const ACTIONS = {
  pause: { label: "Pause", icon: "pause", key: "P", scope: "manage", when: (target) => open(target) && target.status !== "paused", effect: () => "No more code of the run is executed. A step in flight is finished and recorded. Timers continue, and events are kept until the run is resumed." },
  resume: { label: "Resume", icon: "play", scope: "manage", when: (target) => target.status === "paused", effect: () => "The run continues from its history. Events and timers that came in the meantime are processed." },
  event: { label: "Send event", icon: "send", key: "E", scope: "send_event", when: open, effect: (target) => (target.whyParts?.position ? `The run continues at ${target.whyParts.position.file}:${target.whyParts.position.line} if it waits for this event.` : "The event goes into the mailbox of the run.") },
  retry: { label: "Retry", icon: "retry", key: "R", scope: "manage", when: (target) => target.status === "errored", effect: () => "A new run continues from this history: finished steps keep their results, and the failed step gets fresh attempts." },
  fork: { label: "Fork", icon: "fork", key: "F", scope: "manage", when: () => true, effect: () => "A new instance starts with the history before the chosen step. This run stays as it is." },
  resolve: { label: "Resolve a step", icon: "step", scope: "manage", when: open, effect: () => "The step gets this outcome and is not called again. The run continues with it." },
  reply: { label: "Reply", icon: "ask", scope: "manage", when: open, effect: () => "The asking run or program gets this reply. A later reply of the code has no effect." },
  restart: { label: "Restart", icon: "first", scope: "manage", when: () => true, effect: (target) => `Run ${(target.runNumber ?? 0) + 1} starts from the beginning with the same params. ${open(target) ? "The present run ends. " : ""}Nothing of the old run reaches the new one.` },
  cancel: { label: "Cancel", icon: "ban", scope: "manage", when: open, danger: true, effect: () => "CancelledError is raised where the code waits. The code may clean up before the run ends." },
  terminate: { label: "Terminate", icon: "close", scope: "manage", when: open, danger: true, effect: () => "The run ends at once and for good. Its code does not clean up." },
  delete: { label: "Delete", icon: "trash", scope: "manage", when: ended, danger: true, effect: () => "The run, its history, events and log lines are deleted. This cannot be undone." },
};

/** @param {string} name @param {Target} target */
export function possible(name, target) {
  const action = ACTIONS[name];
  return may(action.scope) && action.when(target);
}

/** @typedef {{label: string, icon: string, action?: string, initial?: Record<string, any>, href?: string}} Move an action, or a page */

/**
 * The next action on a run, from the parts of `why`.
 * @param {Target} target
 * @returns {Move | null}
 */
export function nextMove(target) {
  const { kind, eventType, name, stepKey, code } = target.whyParts ?? {};
  /** @param {string} action @param {string} label @param {Record<string, any>} [initial] */
  const move = (action, label, initial) => (possible(action, target) ? { action, label: `${label}…`, icon: ACTIONS[action].icon, initial } : null);
  if (target.status === "paused" && code === "NON_DETERMINISTIC") return { label: "Compare", icon: "code", href: runHref(target.workflow, target.id, { tab: "code" }) };
  if (target.status === "paused") return move("resume", "Resume");
  if (target.status === "errored") return move("retry", "Retry");
  if (kind === "event" && eventType) return move("event", `Send ${text(eventType, 30)}`);
  if (kind === "message" && name && name !== "*") return move("event", `Send ${text(name, 30)}`, { type: name });
  if (kind === "retry" && stepKey && target.kind !== "graph") return move("resolve", "Resolve", { stepKey });
  if (kind === "limit") return { label: "Show limit", icon: "gauge", href: href(["flow"], { limit: name }) };
  if (kind === "due" || kind === "no_code" || kind === "queue_paused") return { label: "Show queue", icon: "chip", href: href(["flow"]) };
  if (kind === "child" && name?.includes("/")) return { label: "Open child", icon: "child", href: runHref(splitPid(name).workflow, splitPid(name).id) };
  return null;
}

/** @param {Move} move @param {Target} target @param {() => void} [done] */
export function takeMove(move, target, done) {
  if (move.href) go(move.href);
  else if (move.action) openAction(move.action, target, { done, initial: move.initial });
}

/**
 * @param {string} name
 * @param {Target} target
 * @param {{done?: () => void, initial?: Record<string, any>}} [options]
 */
export function openAction(name, target, { done, initial } = {}) {
  openOverlay(ActionSheet, { name, target, done, initial: initial ?? {} });
}

/** @param {string} name @param {Target} target @param {Record<string, any>} body @returns {Promise<any>} */
function send(name, target, body) {
  if (name === "delete") return remove(instancePath(target.workflow, target.id), body);
  return post(instancePath(target.workflow, target.id, name === "event" ? "events" : name), body);
}

/** @param {string} name @param {Target} target @param {any} answer */
function report(name, target, answer) {
  const pid = `${target.workflow}/${target.id}`;
  if (name === "fork") toast(`Forked ${pid}`, { href: runHref(target.workflow, answer.id), link: answer.id });
  else toast(`${ACTIONS[name].label}: ${pid}`, { state: name === "delete" || name === "terminate" ? "terminated" : "complete" });
}

/** @param {{label: string, hint?: string, children: any}} props */
export function Labelled({ label, hint, children }) {
  return html`<label class="field"><span>${label} ${hint ? html`<em>${hint}</em>` : null}</span>${children}</label>`;
}

/** @param {{value: string, onChange: (value: string) => void, focus?: boolean}} props */
export function Reason({ value, onChange, focus = true }) {
  return html`<${Labelled} label="Reason" hint="for the audit"><input class="input" autofocus=${focus} maxlength="2000" value=${value} onInput=${onText(onChange)} /><//>`;
}

/** @param {{name: string, target: Target, done?: () => void, initial: Record<string, any>}} props */
function ActionSheet({ name, target, done, initial }) {
  const action = ACTIONS[name];
  const [values, setValues] = useState(/** @type {Record<string, any>} */ ({ reason: "", ...initial }));
  const definition = useDefinition(name === "event" ? target.workflow : null);
  const declared = definition?.events ?? {};
  const eventType = values.type ?? target.whyParts?.eventType ?? Object.keys(declared)[0] ?? "";
  const form = useSchemaForm(name === "event" ? declared[eventType] ?? {} : null);
  /** @param {Record<string, any>} change */
  const set = (change) => setValues((old) => ({ ...old, ...change }));

  const { submit, busy, problem } = useSubmit(async () => {
    const body = requestBody(name, { ...values, type: eventType }, form);
    if ("fault" in body) throw new Error(body.fault);
    const aimed = { ...target, id: target.id || values.run };
    report(name, aimed, await send(name, aimed, body));
    closeOverlay();
    done?.();
  });
  const ready = !busy && (name !== "delete" || values.typed === "1") && (name !== "fork" || values.before) && (target.id || values.run);
  useKeys({ "Ctrl+Enter": () => void (ready && submit()), Escape: closeOverlay });
  return html`<${Dialog} label=${`${action.label} ${target.workflow}/${target.id}`} class=${name === "event" ? "sheet wide" : "sheet"}>
    <header><${Icon} name=${action.icon} /><span class="cut">${action.label} <code>${target.workflow}${target.id ? `/${target.id}` : ""}</code></span></header>
    <div class="body">
      <div class="notice"><span>${text(action.effect(target))} This is written to the audit.</span></div>
      <${Extra} key=${eventType} name=${name} target=${target} values=${{ ...values, type: eventType }} set=${set} form=${form} declared=${declared} issues=${problem?.issues} />
      <${Reason} value=${values.reason} focus=${name !== "event"} onChange=${(/** @type {string} */ reason) => set({ reason })} />
      ${name === "delete" ? html`<${Labelled} label="Type 1, the number of runs that are deleted"><input class="input" inputmode="numeric" value=${values.typed ?? ""} onInput=${onText((typed) => set({ typed }))} /><//>` : null}
      ${problem ? html`<${Problem} error=${problem} />` : null}
    </div>
    <${SheetButtons} label=${busy ? "One moment…" : action.label} disabled=${!ready} onClick=${submit} />
  <//>`;
}

/** The definition of a workflow; undefined until it is loaded. @param {string | null} workflow */
export function useDefinition(workflow) {
  const definitions = useGet(workflow === null ? null : "_definitions");
  return definitions.data?.workflows.find((/** @type {any} */ each) => each.name === workflow);
}

/**
 * The fields that only one action has.
 * @param {{name: string, target: Target, values: Record<string, any>, set: (change: Record<string, any>) => void, form: any, declared: Record<string, any>, issues?: any[]}} props
 */
function Extra({ name, target, values, set, form, declared, issues }) {
  /** @param {string} key */
  const input = (key) => onText((value) => set({ [key]: value }));
  if (name === "event") {
    return html`${target.id ? null : html`<${Labelled} label="Run" hint="the id of the instance"><input class="input mono" autofocus value=${values.run ?? ""} onInput=${input("run")} /><//>`}
      <${Labelled} label="Type"><input class="input mono" list="event-types" value=${values.type} onInput=${input("type")} />
        <datalist id="event-types">${Object.keys(declared).map((type) => html`<option value=${type}></option>`)}</datalist><//>
      <${SchemaForm} form=${form} title="Payload" kind=${declared[values.type]?.title} issues=${issues} />
      <${Labelled} label="Event id" hint="the same id is delivered once"><input class="input mono" value=${values.id ?? ""} onInput=${input("id")} /><//>`;
  }
  if (name === "fork") {
    return html`<${ForkFields} target=${target} values=${values} set=${set} />`;
  }
  if (name === "resolve") {
    return html`<${Labelled} label="Step" hint="its key"><input class="input mono" value=${values.stepKey ?? ""} onInput=${input("stepKey")} /><//>
      <${Labelled} label="Result" hint="JSON; or leave it empty and give an error"><textarea class="textarea mono" spellcheck=${false} value=${values.result ?? ""} onInput=${input("result")}></textarea><//>
      <${Labelled} label="Error" hint="a message"><input class="input" value=${values.error ?? ""} onInput=${input("error")} /><//>`;
  }
  if (name === "reply") {
    return html`<${Labelled} label="Payload" hint="JSON; or leave it empty and reject"><textarea class="textarea mono" autofocus spellcheck=${false} value=${values.result ?? ""} onInput=${input("result")}></textarea><//>
      <${Labelled} label="Reject with" hint="a message"><input class="input" value=${values.error ?? ""} onInput=${input("error")} /><//>`;
  }
  if (name === "cancel") return html`<${Labelled} label="Terminate after" hint="seconds, optional"><input class="input" inputmode="numeric" value=${values.deadline ?? ""} onInput=${input("deadline")} /><//>`;
  return null;
}

/**
 * @param {string} name
 * @param {Record<string, any>} values
 * @param {any} form
 * @returns {Record<string, any> | {fault: string}}
 */
function requestBody(name, values, form) {
  const reason = values.reason ? { reason: values.reason } : {};
  if (name === "event") {
    const payload = form.parse();
    if (payload.fault) return payload;
    return { type: values.type, ...("value" in payload ? { payload: payload.value } : {}), ...(values.id ? { id: values.id } : {}), reason: values.reason };
  }
  if (name === "fork") {
    /** @type {Record<string, any>} */
    const outputs = {};
    for (const [key, typed] of Object.entries(values.outputs ?? {})) {
      const parsed = parseJson(typed);
      if (parsed.fault) return { fault: `result of ${key}: ${parsed.fault}` };
      outputs[key] = parsed.value;
    }
    return { before: values.before, ...(values.id ? { id: values.id } : {}), ...(Object.keys(outputs).length ? { outputs } : {}), ...reason };
  }
  if (name === "resolve" || name === "reply") {
    const [what, of] = name === "reply" ? ["payload", { eventId: values.eventId }] : ["result", { stepKey: values.stepKey }];
    if (values.error) return { ...of, error: values.error, ...reason };
    const result = parseJson(values.result || "null");
    return result.fault ? { fault: `${what}: ${result.fault}` } : { ...of, [what]: result.value, ...reason };
  }
  if (name === "cancel" && values.deadline) return { ...reason, deadlineMs: Math.round(Number(values.deadline) * 1000) };
  return reason;
}
