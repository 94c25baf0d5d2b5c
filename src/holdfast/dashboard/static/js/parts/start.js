/** The sheet that starts a run: the form comes from the JSON schema of the workflow's params. */
import { post } from "../core/api.js";
import { useKeys } from "../core/keys.js";
import { useGet } from "../core/resource.js";
import { go, runHref } from "../core/router.js";
import { html, onText, useState } from "../core/view.js";
import { Problem } from "./basics.js";
import { SchemaForm, useSchemaForm } from "./form.js";
import { closeOverlay, Dialog, openOverlay, toast, SheetButtons, useSubmit } from "./overlay.js";

/** @param {string} [workflow] */
export function openStart(workflow) {
  openOverlay(StartSheet, { workflow });
}

/** @param {{workflow?: string}} props */
function StartSheet({ workflow }) {
  const definitions = useGet("_definitions");
  const [name, setName] = useState(workflow ?? "");
  const known = definitions.data?.workflows ?? [];
  const chosen = known.find((/** @type {any} */ each) => each.name === name) ?? known[0];
  return html`<${Dialog} label="Start a run" class="sheet wide"><header>Start a run</header>
    <div class="body"><label class="field"><span>Workflow</span><select class="select" value=${chosen?.name} onChange=${onText(setName)}>
      ${known.map((/** @type {any} */ each) => html`<option value=${each.name}>${each.name}</option>`)}</select></label>
      ${definitions.error ? html`<${Problem} error=${definitions.error} onRetry=${definitions.refresh} />` : null}</div>
    ${chosen ? html`<${StartForm} key=${chosen.name} definition=${chosen} />` : null}<//>`;
}

/** @param {{definition: any}} props */
export function StartForm({ definition }) {
  const form = useSchemaForm(definition.params);
  const [options, setOptions] = useState({ id: "", queue: "", delay: "", reason: "" });
  /** @param {"id" | "queue" | "delay" | "reason"} key */
  const input = (key) => onText((value) => setOptions((old) => ({ ...old, [key]: value })));

  const { submit, busy, problem } = useSubmit(async () => {
    const params = form.parse();
    if (params.fault) throw new Error(params.fault);
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== ""));
    const answer = await post(`${encodeURIComponent(definition.name)}/instances`, { ...given, reason: options.reason, ...("value" in params ? { params: params.value } : {}) });
    closeOverlay();
    toast(`Started ${definition.name}/${answer.id}`);
    go(runHref(definition.name, answer.id));
  });
  useKeys({ "Ctrl+Enter": () => void submit(), Escape: closeOverlay });
  return html`<div class="body">
      ${definition.params === null ? html`<p class="ink3">This workflow takes no params.</p>` : html`<${SchemaForm} form=${form} title="Params" kind=${definition.params?.title} issues=${problem?.issues} />`}
      <div class="three"><label class="field"><span>Id <em>optional</em></span><input class="input mono" value=${options.id} onInput=${input("id")} /></label>
        <label class="field"><span>Queue <em>optional</em></span><input class="input mono" value=${options.queue} onInput=${input("queue")} /></label>
        <label class="field"><span>Delay <em>such as 10 min</em></span><input class="input" value=${options.delay} onInput=${input("delay")} /></label></div>
      <label class="field"><span>Reason <em>for the audit</em></span><input class="input" maxlength="2000" value=${options.reason} onInput=${input("reason")} /></label>
      ${problem ? html`<${Problem} error=${problem} />` : null}</div>
    <${SheetButtons} label="Start" disabled=${busy} onClick=${submit} />`;
}
