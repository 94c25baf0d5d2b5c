/** Components that every screen uses: buttons, tabs, times, missing data and errors. */
import { useNow } from "../core/clock.js";
import { age, duration, iso, moment, NONE, toMs } from "../core/format.js";
import { html, useEffect, useRef } from "../core/view.js";
import { Icon } from "./icons.js";

/**
 * @param {{icon?: string, label: string, hint?: string, primary?: boolean, quiet?: boolean, large?: boolean, disabled?: boolean, onClick: () => void, pressed?: boolean, class?: string}} props
 */
export function Button({ icon, label, hint, primary, quiet, large, disabled, onClick, pressed, class: extra = "" }) {
  const kind = `button ${primary ? "primary" : ""} ${quiet ? "quiet" : ""} ${large ? "large" : ""} ${extra}`;
  return html`<button type="button" class=${kind} disabled=${disabled} aria-pressed=${pressed === undefined ? undefined : String(pressed)}
    onClick=${onClick}>${icon ? html`<${Icon} name=${icon} />` : null}${label}${hint ? html`<kbd aria-hidden="true">${hint}</kbd>` : null}</button>`;
}

/** @param {{icon: string, label: string, onClick: (event: MouseEvent) => void, expanded?: boolean}} props */
export function IconButton({ icon, label, onClick, expanded }) {
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label} aria-expanded=${expanded === undefined ? undefined : String(expanded)}
    onClick=${onClick}><${Icon} name=${icon} /></button>`;
}

/**
 * @param {{value: string, options: [string, string][], onChange: (value: string) => void, label: string}} props
 */
export function Segmented({ value, options, onChange, label }) {
  return html`<div class="segmented" role="group" aria-label=${label}>${options.map(([key, word]) => html`<button type="button"
    aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${word}</button>`)}</div>`;
}

/** @param {{checked: boolean, label: string, disabled?: boolean, onChange: () => void}} props */
export function Toggle({ checked, label, disabled, onChange }) {
  return html`<button type="button" role="switch" class="toggle" aria-checked=${String(checked)} aria-label=${label} disabled=${disabled} onClick=${onChange} />`;
}

/** @param {{at: string | number | null | undefined}} props */
export function Moment({ at }) {
  const now = useNow();
  if (at == null) return html`<span>${NONE}</span>`;
  return html`<time class="nowrap" datetime=${iso(at)} title=${iso(at)}>${moment(at, now)}</time>`;
}

/** The time since a moment, one unit. @param {{at: string | number | null | undefined}} props */
export function Age({ at }) {
  const now = useNow();
  if (at == null) return html`<span>${NONE}</span>`;
  return html`<time class="nowrap" datetime=${iso(at)} title=${iso(at)}>${age(now - toMs(at))}</time>`;
}

/** The time from a moment to another one, or to now. @param {{from: string | number | null | undefined, until?: string | number | null}} props */
export function Span({ from, until = null }) {
  const now = useNow();
  if (from == null) return html`<span>${NONE}</span>`;
  const ms = (until == null ? Math.floor(now / 1000) * 1000 : toMs(until)) - toMs(from);
  return html`<span class="nowrap">${duration(until == null ? Math.max(0, Math.round(ms / 1000) * 1000) : ms)}</span>`;
}

/** @param {{sentence: string, command?: string}} props */
export function Empty({ sentence, command }) {
  return html`<div class="empty"><p>${sentence}</p>${command ? html`<code>${command}</code>` : null}</div>`;
}

/** @param {{error: any, onRetry?: () => void}} props */
export function Problem({ error, onRetry }) {
  const message = error?.message ?? String(error);
  return html`<div class="problem" role="alert"><${Icon} name="warning" /><span class="grow">${message}${error?.code ? html` <code>${error.code}</code>` : null}</span>
    ${onRetry ? html`<${Button} label="Try again" onClick=${onRetry} />` : null}</div>`;
}

export function Loading({ rows = 4 }) {
  return html`<div class="bars-loading" role="status" aria-label="loading">${Array.from({ length: rows }, () => html`<i></i>`)}</div>`;
}

/**
 * The content of a resource, or its error; grey bars while it is slow to load.
 * @param {{resource: {data: any, error: any, slow: boolean, refresh: () => void}, children: (data: any) => any, rows?: number}} props
 */
export function Place({ resource, children, rows }) {
  const { data, error, slow, refresh } = resource;
  return html`${error ? html`<${Problem} error=${error} onRetry=${refresh} />` : null}
    ${data === undefined ? (slow && !error ? html`<${Loading} rows=${rows} />` : null) : children(data)}`;
}

/**
 * The head of a table. A name may have classes after a bar, and a dot before it if only screen readers read it.
 * @param {any[]} names texts, whole cells, and falsy values for none
 */
export function heads(...names) {
  return html`<thead><tr>${names.map((name) => {
    if (typeof name !== "string") return name;
    const [word, classes = ""] = name.split("|");
    return html`<th scope="col" class=${classes} colspan=${classes === "two-wide" ? 2 : undefined}>${word[0] === "." ? html`<span class="sr">${word.slice(1)}</span>` : word}</th>`;
  })}</tr></thead>`;
}

/**
 * A bar whose length is a share of its width, set through the CSSOM.
 * @param {{share: number, state?: string}} props
 */
export function Meter({ share, state = "" }) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return html`<span class=${`meter ${state ? `s-${state}` : ""}`} aria-hidden="true"><i style=${{ width }}></i></span>`;
}

/**
 * @param {{tabs: {key: string, label: string, count?: number | null, flag?: string}[], current: string, hrefOf: (key: string) => string, children?: any}} props
 */
export function Tabs({ tabs, current, hrefOf, children }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [current, tabs.map((tab) => tab.count).join()]);
  return html`<div class="tabs"><nav class="tab-list" ref=${list} aria-label="views of this run">${tabs.map((tab) => html`<a href=${hrefOf(tab.key)}
    aria-current=${tab.key === current ? "page" : undefined}>${tab.label}${tab.count == null ? null : html` <span class="ink3 medium">${tab.count}</span>`}${tab.flag ? html` <span class="state s-paused small medium">${tab.flag}</span>` : null}</a>`)}</nav>${children}</div>`;
}
