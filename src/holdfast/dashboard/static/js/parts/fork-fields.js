/** The fields of a fork: the step before which it begins, and other results of earlier steps. */
import { get, instancePath } from "../core/api.js";
import { useGet } from "../core/resource.js";
import { html, onText, useState } from "../core/view.js";
import { Button, IconButton, Problem } from "./basics.js";
import { text } from "./text.js";

const MOST_STEPS = 500;

/**
 * The keys of a run's steps in the order of their starts, and of those that have a result.
 * @param {{workflow: string, id: string}} target
 */
function useSteps(target) {
  const timeline = useGet(instancePath(target.workflow, target.id, "timeline"));
  const items = (timeline.data?.items ?? []).slice(-MOST_STEPS);
  return { keys: items.map((/** @type {any} */ item) => item.key), done: items.filter((/** @type {any} */ item) => item.status === "completed").map((/** @type {any} */ item) => item.key) };
}

/** @param {{target: {workflow: string, id: string}, values: Record<string, any>, set: (change: Record<string, any>) => void}} props */
export function ForkFields({ target, values, set }) {
  const { keys, done } = useSteps(target);
  const [chosen, setChosen] = useState("");
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const outputs = /** @type {Record<string, string>} */ (values.outputs ?? {});
  const limit = keys.indexOf(values.before);
  const earlier = done.filter((/** @type {string} */ key) => !(key in outputs) && (limit < 0 || keys.indexOf(key) < limit));
  async function change() {
    try {
      const { step } = await get(instancePath(target.workflow, target.id, "step"), { key: chosen });
      set({ outputs: { ...outputs, [chosen]: JSON.stringify(step?.result ?? null, null, 2) } });
      setChosen("");
    } catch (error) {
      setProblem(error);
    }
  }
  /** @param {string} key */
  const without = (key) => set({ outputs: Object.fromEntries(Object.entries(outputs).filter(([other]) => other !== key)) });
  return html`<label class="field"><span>Before the step <em>its key; it and what follows are done again</em></span><input class="input mono" list="fork-steps" value=${values.before ?? ""} onInput=${onText((before) => set({ before }))} />
      <datalist id="fork-steps">${keys.map((/** @type {string} */ key) => html`<option value=${key}></option>`)}</datalist></label>
    <label class="field"><span>Id of the new instance <em>optional</em></span><input class="input mono" value=${values.id ?? ""} onInput=${onText((id) => set({ id }))} /></label>
    ${Object.entries(outputs).map(([key, typed]) => html`<div class="field"><label for=${`result-${key}`}>Result of <code>${text(key, 100)}</code> <em>in the new instance</em></label><div class="row"><textarea id=${`result-${key}`} class="textarea mono" spellcheck=${false} value=${typed} onInput=${(/** @type {any} */ event) => set({ outputs: { ...outputs, [key]: event.target.value } })}></textarea><${IconButton} icon="close" label=${`Keep the recorded result of ${text(key, 60)}`} onClick=${() => without(key)} /></div></div>`)}
    ${earlier.length ? html`<div class="row"><select class="select" aria-label="Earlier step" value=${chosen} onChange=${onText(setChosen)}><option value="">Another result for an earlier step…</option>${earlier.map((/** @type {string} */ key) => html`<option value=${key}>${text(key, 100)}</option>`)}</select><${Button} label="Change its result" disabled=${chosen === ""} onClick=${change} /></div>` : null}
    ${problem ? html`<${Problem} error=${problem} />` : null}`;
}
