/** A form made from a JSON schema, or its JSON text. */
import { fieldOf, initialOf, parseField, parseJson } from "../core/schema.js";
import { html, onText, useLayoutEffect, useMemo, useRef, useState } from "../core/view.js";
import { Segmented } from "./basics.js";
import { text } from "./text.js";

/** @typedef {import("../core/schema.js").Field} Field */
/** @typedef {import("../core/schema.js").Parsed} Parsed */

/**
 * The state of a form.
 * @param {Record<string, any> | null | undefined} schema `null`: no value; `{}`: any JSON
 */
export function useSchemaForm(schema) {
  // Live updates replace the definitions; a schema with the same content keeps what the user has typed.
  const content = JSON.stringify(schema ?? {});
  const field = useMemo(() => fieldOf(schema ?? {}), [content]);
  const [typed, setTyped] = useState(() => initialOf(field));
  const free = field.kind === "json";
  const [mode, setMode] = useState(free ? "json" : "form");
  const [json, setJson] = useState("");
  const shown = useRef(content);
  // A layout effect: one after painting could clear a field in which the user has typed.
  useLayoutEffect(() => {
    if (shown.current === content) return;
    shown.current = content;
    setTyped(initialOf(field));
    setMode(free ? "json" : "form");
  }, [content]);
  /** @returns {Parsed} */
  function parse() {
    if (schema === null) return {};
    if (mode === "json") return json.trim() === "" ? {} : parseJson(json);
    return parseField(field, typed);
  }
  /** @param {string} next */
  function change(next) {
    const { value } = parse();
    if (next === "json" && value !== undefined) setJson(JSON.stringify(value, null, 2));
    if (next === "form" && value !== undefined && typeof value === "object") setTyped(typedOf(field, value));
    setMode(next);
  }
  return { field, typed, setTyped, mode, change, json, setJson, parse, free, schema };
}

/** @param {Field} field @param {any} value @returns {any} */
function typedOf(field, value) {
  if (field.kind === "object") return Object.fromEntries((field.fields ?? []).map((inner) => [inner.key, typedOf(inner, value?.[inner.key])]));
  if (value === undefined || value === null) return "";
  if (field.kind === "boolean" || field.kind === "choice") return value;
  return field.kind === "json" ? JSON.stringify(value) : String(value);
}

/** @param {{field: Field, value: any, onChange: (value: any) => void, fault?: string, path: string}} props */
function Control({ field, value, onChange, fault, path }) {
  const id = `field-${path}`;
  /** @param {any} event */
  const input = (event) => onChange(event.target.value);
  const shared = { id, "aria-invalid": fault ? "true" : undefined, "aria-describedby": fault ? `${id}-fault` : undefined };
  if (field.kind === "boolean") {
    return html`<div class="row" role="radiogroup" aria-labelledby=${`${id}-label`}>${[true, false].map((choice) => html`<label class="row"><input type="radio" name=${id} checked=${value === choice} onChange=${() => onChange(choice)} />${choice ? "yes" : "no"}</label>`)}</div>`;
  }
  if (field.kind === "choice") {
    return html`<select class="select" ...${shared} value=${JSON.stringify(value)} onChange=${(/** @type {any} */ event) => onChange(JSON.parse(event.target.value || "null") ?? undefined)}>
      ${field.required ? null : html`<option value="">–</option>`}${field.choices?.map((choice) => html`<option value=${JSON.stringify(choice)}>${text(choice)}</option>`)}</select>`;
  }
  if (field.kind === "json") return html`<textarea class="textarea mono" ...${shared} spellcheck=${false} value=${value ?? ""} onInput=${input}></textarea>`;
  return html`<input class="input" ...${shared} inputmode=${field.kind === "text" ? "text" : "decimal"} autocomplete="off" value=${value ?? ""} onInput=${input} />`;
}

/**
 * @param {{field: Field, value: any, onChange: (value: any) => void, faults: Record<string, string>, path?: string}} props
 */
function FieldView({ field, value, onChange, faults, path = "" }) {
  const own = path ? `${path}.${field.key}` : field.key;
  if (field.kind === "object") {
    const inner = field.fields?.map((each) => html`<${FieldView} key=${each.key} field=${each} value=${value?.[each.key]} faults=${faults} path=${own}
      onChange=${(/** @type {any} */ next) => onChange({ ...value, [each.key]: next })} />`);
    return field.key ? html`<fieldset class="group"><legend>${text(field.key)}</legend>${inner}</fieldset>` : html`<div class="col">${inner}</div>`;
  }
  const fault = faults[own];
  return html`<div class="field"><label id=${`field-${own}-label`} for=${field.kind === "boolean" ? undefined : `field-${own}`}><span class="ink medium">${text(field.key || "value")}</span> <em>${text(field.hint)}</em></label>
    <${Control} field=${field} value=${value} onChange=${onChange} fault=${fault} path=${own} />
    ${fault ? html`<span class="fault" id=${`field-${own}-fault`}>${text(fault)}</span>` : null}</div>`;
}

/**
 * @param {{form: ReturnType<typeof useSchemaForm>, title: string, kind?: string, issues?: {path: (string | number)[], message: string}[]}} props
 */
export function SchemaForm({ form, title, kind, issues = [] }) {
  const faults = Object.fromEntries(issues.map((issue) => [issue.path.join("."), issue.message]));
  return html`<div class="col"><div class="row between"><span><b class="medium">${title}</b> <span class="ink3">${kind ? text(kind) : ""}</span></span>
    ${form.free ? null : html`<${Segmented} label="how to enter the value" value=${form.mode} options=${[["form", "Form"], ["json", "JSON"]]} onChange=${form.change} />`}</div>
    ${form.mode === "json"
      ? html`<textarea class="textarea mono tall" aria-label=${`${title} as JSON`} spellcheck=${false} placeholder="JSON, or empty" value=${form.json} onInput=${onText(form.setJson)}></textarea>`
      : html`<${FieldView} field=${form.field} value=${form.typed} onChange=${form.setTyped} faults=${faults} />`}</div>`;
}
