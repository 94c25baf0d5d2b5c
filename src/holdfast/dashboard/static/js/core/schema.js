/** JSON schemas of params and events as fields of a form, and back: the text of the fields as JSON. */

/** @typedef {Record<string, any>} Schema */
/** @typedef {import("../types.d.ts").Field} Field */

const DEEPEST = 4;

/** @param {Schema} schema @param {Schema} root @returns {Schema} */
function resolve(schema, root) {
  let current = schema;
  for (let hops = 0; typeof current?.$ref === "string" && hops < 10; hops += 1) {
    const parts = current.$ref.replace(/^#\//, "").split("/");
    /** @type {any} */
    let target = root;
    for (const part of parts) target = target?.[part.replace(/~1/g, "/").replace(/~0/g, "~")];
    current = target ?? {};
  }
  const options = current?.anyOf ?? current?.oneOf;
  if (Array.isArray(options)) {
    const values = options.filter((option) => option.type !== "null");
    if (values.length === 1) return { ...resolve(values[0], root), nullable: values.length < options.length, default: current.default, title: current.title };
  }
  return current?.allOf?.length === 1 ? resolve(current.allOf[0], root) : current ?? {};
}

const WORDS = /** @type {Record<string, string>} */ ({ text: "text", integer: "whole number", number: "number", boolean: "yes or no", choice: "one of", object: "", json: "JSON" });

/** @param {Schema} schema @param {number} depth @returns {Field["kind"]} */
function kindOf(schema, depth) {
  if (Array.isArray(schema.enum) || schema.const !== undefined) return "choice";
  if (schema.type === "string") return "text";
  if (schema.type === "integer" || schema.type === "number" || schema.type === "boolean") return schema.type;
  if (schema.type === "object" && schema.properties && depth < DEEPEST) return "object";
  return "json";
}

/**
 * The field of a schema. A schema that is not an object gives one field with the empty key.
 * @param {Schema} given
 * @param {Schema} [root]
 * @returns {Field}
 */
export function fieldOf(given, root = given, key = "", required = true, depth = 0) {
  const schema = resolve(given, root);
  const kind = kindOf(schema, depth);
  const hint = [schema.format ?? WORDS[kind], required && !schema.nullable ? "" : "optional"].filter(Boolean).join(", ");
  /** @type {Field} */
  const field = { key, kind, hint, required, initial: schema.default, description: schema.description };
  if (kind === "choice") field.choices = schema.enum ?? [schema.const];
  if (kind === "object") {
    const needed = new Set(schema.required ?? []);
    field.fields = Object.entries(schema.properties).slice(0, 100).map(([name, inner]) => fieldOf(inner, root, name, needed.has(name), depth + 1));
  }
  return field;
}

/** @typedef {{value?: any, fault?: string}} Parsed */

/**
 * The value of a field from the typed text. An empty optional field has no value.
 * @param {Field} field
 * @param {any} typed text, boolean, or an object of typed values
 * @returns {Parsed}
 */
export function parseField(field, typed) {
  if (field.kind === "object") return parseObject(field, typed ?? {});
  if (typed === undefined || typed === "") {
    if (field.kind === "text" && field.required) return { value: "" };
    return field.required ? { fault: "a value is needed" } : {};
  }
  if (field.kind === "integer") return /^[+-]?\d+$/.test(String(typed)) ? { value: Number(typed) } : { fault: "a whole number is needed" };
  if (field.kind === "number") return Number.isFinite(Number(typed)) ? { value: Number(typed) } : { fault: "a number is needed" };
  if (field.kind === "json") return parseJson(String(typed));
  return { value: typed };
}

/** @param {string} typed @returns {Parsed} */
export function parseJson(typed) {
  try {
    return { value: JSON.parse(typed) };
  } catch {
    return { fault: "not valid JSON" };
  }
}

/** @param {Field} field @param {Record<string, any>} typed @returns {Parsed} */
function parseObject(field, typed) {
  /** @type {Record<string, any>} */
  const value = {};
  let fault = "";
  for (const inner of field.fields ?? []) {
    const parsed = parseField(inner, typed[inner.key]);
    if (parsed.fault) fault ||= `${inner.key}: ${parsed.fault}`;
    else if ("value" in parsed) value[inner.key] = parsed.value;
  }
  if (fault) return { fault };
  return Object.keys(value).length || field.required ? { value } : {};
}

/**
 * The initial content of a field.
 * @param {Field} field
 * @returns {any}
 */
export function initialOf(field) {
  if (field.kind === "object") return Object.fromEntries((field.fields ?? []).map((inner) => [inner.key, initialOf(inner)]));
  if (field.kind === "boolean") return field.initial ?? (field.required ? false : undefined);
  if (field.kind === "choice") return field.initial ?? (field.required ? field.choices?.[0] : undefined);
  if (field.initial == null) return "";
  return field.kind === "json" ? JSON.stringify(field.initial) : String(field.initial);
}
