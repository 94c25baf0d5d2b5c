/** Workers as tiles, one row for each host. */
import { href } from "../core/router.js";
import { html } from "../core/view.js";
import { Moment } from "./basics.js";
import { Glyph } from "./status.js";
import { text } from "./text.js";

const MOST = 60;

/** @param {{workers: any[]}} props */
export function WorkerTiles({ workers }) {
  /** @type {Map<string, any[]>} */
  const hosts = new Map();
  for (const worker of workers.slice(0, MOST)) hosts.set(worker.host, [...(hosts.get(worker.host) ?? []), worker]);
  const lost = workers.find((worker) => !worker.alive);
  return html`<div class="tiles">${[...hosts.entries()].map(([host, own]) => html`<span class="mono cut host ink2" title=${host}>${text(host, 40)}</span>${own.map((worker) => (worker.alive
    ? html`<a class="tile" href=${href(["workers"])} title=${worker.id}><i class="dot"></i><b class="medium">${worker.held ?? 0}</b> <span class="ink2">${worker.draining ? "draining" : "held"}</span></a>`
    : html`<a class="tile lost" href=${href(["workers"])} title=${worker.id}><${Glyph} state="lost" size=${12} /> lost</a>`))}`)}</div>
    ${lost ? html`<p class="ink2 small panel">The worker on ${text(lost.host, 40)} was last seen at <${Moment} at=${lost.seenAt} />. Others take over its runs when their leases expire.</p>` : null}
    ${workers.length ? null : html`<div class="empty"><p>No worker has been seen.</p><code>holdfast worker shop:app</code></div>`}`;
}
