/** An error with its traceback and causes. */
import { html } from "../core/view.js";
import { text } from "./text.js";

const MOST_LINES = 200;

/** A line of a traceback. Its frames name the end of the path; the whole path is the title. @param {string} line */
function Line(line) {
  const [, file, number, name] = /^ {2}File "(.+)", line (\d+), in (.+)$/.exec(line) ?? [];
  if (file) return html`<span title=${file}><span class="ink3">File</span> ${text(file.split("/").slice(-2).join("/"), 200)}:${number} <span class="ink3">in ${text(name, 100)}</span>${"\n"}</span>`;
  return html`<span class=${line.startsWith("  ") ? "" : "state s-errored"}>${text(line, 500)}${"\n"}</span>`;
}

/** @param {{error: {name: string, message: string, traceback?: string, causes?: any[]}, title?: boolean}} props */
export function ErrorView({ error, title = true }) {
  return html`<div class="error-view">${title ? html`<p class="state s-errored medium bidi">${text(error.name, 200)}: ${text(error.message, 2000)}</p>` : null}
    ${error.traceback ? html`<pre class="sunken traceback" tabindex="0" aria-label="traceback">${error.traceback.split("\n").filter((line) => line !== "Traceback (most recent call last):").slice(0, MOST_LINES).map(Line)}</pre>` : title ? null : html`<pre class="sunken traceback">${text(error.name, 200)}: ${text(error.message, 2000)}</pre>`}
    ${error.causes?.slice(0, 5).map((cause) => html`<div class="cause"><span class="ink3 small">caused by</span><${ErrorView} error=${cause} /></div>`)}</div>`;
}
