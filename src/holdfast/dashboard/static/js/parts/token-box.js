/** The filter box: conditions as tokens, with completion of keys and values. */
import { KEYS, parseFilter } from "../core/filter.js";
import { html, onText, useRef, useState } from "../core/view.js";
import { Icon } from "./icons.js";
import { text } from "./text.js";

/** @typedef {import("../core/filter.js").Condition} Condition */
/** @typedef {Record<string, string[]>} Vocabulary values by key; the keys are offered too */

const MOST_SUGGESTIONS = 8;

/**
 * Completions of what was typed.
 * @param {string} typed
 * @param {Vocabulary} vocabulary
 * @returns {string[]}
 */
export function completions(typed, vocabulary) {
  const colon = typed.indexOf(":");
  if (typed === "") return [];
  if (colon < 0) {
    const keys = [...new Set([...KEYS, ...Object.keys(vocabulary)])];
    return keys.filter((key) => key.startsWith(typed.toLowerCase())).map((key) => `${key}:`).slice(0, MOST_SUGGESTIONS);
  }
  const key = typed.slice(0, colon);
  const value = typed.slice(colon + 1).toLowerCase();
  return (Object.hasOwn(vocabulary, key) ? vocabulary[key] : []).filter((each) => each.toLowerCase().startsWith(value)).map((each) => `${key}:${each}`).slice(0, MOST_SUGGESTIONS);
}

/**
 * @param {{conditions: Condition[], vocabulary: Vocabulary, onChange: (conditions: Condition[]) => void, inputRef: {current: HTMLInputElement | null}}} props
 */
export function TokenBox({ conditions, vocabulary, onChange, inputRef }) {
  const [typed, setTyped] = useState("");
  const [index, setIndex] = useState(0);
  const [focused, setFocused] = useState(false);
  const box = useRef(null);
  const offered = completions(typed, vocabulary);
  const chosen = offered[Math.min(index, offered.length - 1)];
  const ghost = chosen?.toLowerCase().startsWith(typed.toLowerCase()) ? chosen.slice(typed.length) : "";

  /** @param {string} word */
  function add(word) {
    const [condition] = parseFilter(word);
    setTyped("");
    setIndex(0);
    if (condition) onChange([...conditions.filter((each) => each.key !== condition.key || each.key === "search"), condition]);
  }

  /** @param {string} completion */
  function complete(completion) {
    if (completion.endsWith(":")) setTyped(completion);
    else add(completion);
    inputRef.current?.focus();
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    const taken = takes(event.key);
    if (!taken) return;
    event.preventDefault();
    taken();
  }

  /** @param {string} name @returns {(() => void) | null} */
  function takes(name) {
    if (name === "Tab" && ghost) return () => complete(chosen);
    if (name === "ArrowDown" && offered.length) return () => setIndex((index + 1) % offered.length);
    if (name === "ArrowUp" && offered.length) return () => setIndex((index + offered.length - 1) % offered.length);
    if ((name === "Enter" || name === " ") && typed.trim() && !typed.endsWith(":") && !/:"[^"]*$/.test(typed)) return () => add(index > 0 && chosen ? chosen : typed.trim());
    if (name === "Backspace" && typed === "" && conditions.length) return () => onChange(conditions.slice(0, -1));
    if (name === "Escape") return () => (typed ? setTyped("") : inputRef.current?.blur());
    return null;
  }

  return html`<div class="token-box anchor" ref=${box} onClick=${() => inputRef.current?.focus()}><${Icon} name="search" />
    ${conditions.map((condition, position) => html`<span class="token mono"><span>${text(condition.key, 40)}:<b>${text(condition.value, 80)}</b></span>
      <button type="button" aria-label=${`Remove ${condition.key}:${text(condition.value, 40)}`} onClick=${(/** @type {Event} */ event) => { event.stopPropagation(); onChange(conditions.filter((_, other) => other !== position)); }}><${Icon} name="close" size=${12} /></button></span>`)}
    <span class="token-input mono"><input ref=${inputRef} role="combobox" aria-label="Filter" aria-expanded=${String(focused && offered.length > 0)} aria-controls="filter-offers" aria-autocomplete="list" autocomplete="off" spellcheck=${false}
      placeholder=${conditions.length ? "" : "Filter: status:errored workflow:… or the beginning of an id"} value=${typed} onInput=${onText((value) => { setTyped(value.trimStart()); setIndex(0); })} onKeyDown=${key}
      onFocus=${() => setFocused(true)} onBlur=${() => setFocused(false)} />${ghost && focused ? html`<span class="ghost" aria-hidden="true"><i>${typed}</i>${text(ghost, 60)} <kbd>Tab</kbd></span>` : null}</span>
    <span class="ink3 wide-only nowrap hint">status, id, version, queue, ended, any search attribute</span><kbd class="wide-only" aria-hidden="true">/</kbd>
    <div class="menu offers" id="filter-offers" role="listbox" aria-label="completions" hidden=${!(focused && offered.length > 0)}>${offered.map((offer, position) => html`<button type="button" role="option" tabindex="-1" aria-selected=${String(position === index)} class="mono"
      onMouseDown=${(/** @type {Event} */ event) => event.preventDefault()} onClick=${() => complete(offer)}>${text(offer, 80)}</button>`)}</div></div>`;
}
