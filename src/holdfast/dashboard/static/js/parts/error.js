/** An error with its traceback and causes. */
import { html } from "../core/view.js";
import { text } from "./text.js";

/** @param {{error: {name: string, message: string, traceback?: string, causes?: any[]}, title?: boolean}} props */
export function ErrorView({ error, title = true }) {
  return html`<div class="error-view">${title ? html`<p class="state s-errored medium bidi">${text(error.name, 200)}: ${text(error.message, 2000)}</p>` : null}
    ${error.traceback ? html`<pre class="sunken traceback" tabindex="0" aria-label="traceback">${error.traceback.split("\n").slice(0, 200).map((line) => html`<span class=${line.startsWith("  ") ? "" : "state s-errored"}>${text(line, 500)}${"\n"}</span>`)}</pre>` : title ? null : html`<pre class="sunken traceback">${text(error.name, 200)}: ${text(error.message, 2000)}</pre>`}
    ${error.causes?.slice(0, 5).map((cause) => html`<div class="cause"><span class="ink3 small">caused by</span><${ErrorView} error=${cause} /></div>`)}</div>`;
}
