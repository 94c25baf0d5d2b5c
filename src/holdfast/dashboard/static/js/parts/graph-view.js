/** A graph as a picture: nodes coloured by state, items of mapped nodes as a grid, the critical path in ink. */
import { duration, number, plural } from "../core/format.js";
import { edgePath, layout } from "../run/layout.js";
import { html, useMemo } from "../core/view.js";
import { Glyph, stateOf } from "./status.js";
import { text } from "./text.js";

const GRID = 25; // items in a row
const MOST_ITEMS = 500;
const CELL = 7;

/** @param {any} node @param {number} now */
function noteOf(node, now) {
  if (node.error) return `${node.error.name}, ${plural(node.attempts, "attempt")}`;
  if (node.state === "skipped") return node.when ? "when= was false" : "skipped";
  if (node.state === "retrying") return `attempt ${node.attempts + 1}`;
  if (node.state === "started") return node.start ? `${duration(Math.round((now - node.start) / 1000) * 1000)}, attempt ${(node.attempts ?? 0) + 1}` : "started";
  if (node.end && node.start) return `${duration(node.end - node.start)}${node.items ? `, ${number(node.items.total)} items` : ""}`;
  if (node.map) return `for each of ${node.map}`;
  if (node.run) return `run of ${node.run}`;
  return node.after?.length === 1 ? `after ${node.after[0]}` : node.after?.length ? `after ${node.after.length} nodes` : "";
}

/** @param {any} node @param {boolean} live */
function boxOf(node, live) {
  const shows = live && node.items?.total && node.state !== "pending";
  const rows = shows ? Math.ceil(Math.min(node.items.total, MOST_ITEMS) / GRID) : 0;
  const width = shows ? Math.max(150, GRID * CELL + 24) : Math.max(124, Math.min(220, Math.max(node.key.length * 7.4 + 44, noteOf(node, Date.now()).length * 6.2 + 36)));
  return { key: node.key, after: node.after ?? [], width, height: shows ? 84 + rows * CELL : 46 };
}

/** The items of a node, sorted by state: the grid shows how many there are of each. @param {any} items */
function cells(items) {
  const order = /** @type {[string, number][]} */ ([["complete", items.ok], ["errored", items.error], ["active", items.running], ["retrying", items.retrying], ["pending", items.pending]]);
  const scale = items.total > MOST_ITEMS ? MOST_ITEMS / items.total : 1;
  return order.flatMap(([state, count]) => Array.from({ length: Math.round((count ?? 0) * scale) }, () => state));
}

/**
 * @param {{nodes: any[], down?: boolean, scale?: number, now: number, selected?: string | null, onSelect?: (key: string) => void, live?: boolean}} props
 */
export function GraphView({ nodes, down = false, scale = 1, now, selected = null, onSelect, live = true }) {
  const shape = nodes.map((node) => `${node.key}<${(node.after ?? []).join()}:${node.items?.total ?? 0}:${node.state !== "pending"}:${noteOf(node, now).length}`).join(";");
  const { places, width, height } = useMemo(() => layout(nodes.map((node) => boxOf(node, live)), down), [shape, down]);
  const byKey = new Map(nodes.map((node) => [node.key, node]));
  return html`<svg class="canvas" width=${width * scale} height=${height * scale} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label="graph"><defs>${["", "critical"].map((kind) => html`<marker id=${`arrow-${kind}`} viewBox="0 0 8 8" refX="3" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path class=${`arrow ${kind}`} d="M0 0 8 4 0 8Z" /></marker>`)}</defs>
    ${nodes.flatMap((node) => (node.after ?? []).map((/** @type {string} */ before) => {
      const [from, to] = [places.get(before), places.get(node.key)];
      if (!from || !to) return null;
      const critical = node.critical && byKey.get(before)?.critical;
      const dashed = node.state === "skipped" || byKey.get(before)?.state === "error";
      return html`<path class=${`edge ${critical ? "critical" : ""} ${dashed ? "dashed" : ""}`} d=${edgePath(from, to, down)} marker-end=${`url(#arrow-${critical ? "critical" : ""})`} />`;
    }))}
    ${nodes.map((node) => {
      const place = places.get(node.key);
      return place ? html`<${NodeBox} key=${node.key} node=${node} place=${place} now=${now} selected=${selected === node.key} onSelect=${onSelect} live=${live} />` : null;
    })}</svg>`;
}

/** @param {{node: any, place: import("../run/layout.js").Place, now: number, selected: boolean, onSelect?: (key: string) => void, live: boolean}} props */
function NodeBox({ node, place, now, selected, onSelect, live }) {
  const state = live ? stateOf(node.state ?? "pending") : "pending";
  const note = noteOf(node, now);
  const grid = live && node.items?.total && node.state !== "pending" ? cells(node.items) : null;
  const counts = grid ? /** @type {[string, string, number][]} */ ([["complete", "ok", node.items.ok], ["active", "run", node.items.running], ["retrying", "retry", node.items.retrying], ["errored", "failed", node.items.error], ["pending", "wait", node.items.pending]]).filter(([, , count]) => count) : [];
  const choose = () => onSelect?.(node.key);
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose();
    }
  };
  return html`<g class=${`node s-${state} ${selected ? "selected" : ""}`} transform=${`translate(${place.x} ${place.y})`} tabindex=${onSelect ? "0" : undefined} role=${onSelect ? "button" : undefined} aria-pressed=${onSelect ? String(selected) : undefined} onClick=${choose} onKeyDown=${key}>
    <rect class="box" width=${place.width} height=${place.height} rx="6" /><g transform="translate(10 8)"><${Glyph} state=${state} size=${12} label=${live} /></g><text class="name" x="28" y="19">${text(node.key.slice(0, 28), 30)}</text>
    ${grid ? html`<text x="11" y="40"><tspan class="strong">${number(node.items.ok)}</tspan> of ${number(node.items.total)}</text>${grid.map((each, index) => html`<rect class=${`item s-${each}`} x=${11 + (index % GRID) * CELL} y=${48 + Math.floor(index / GRID) * CELL} width="5.6" height="5.6" rx="1" />`)}<text class="note" x="5" y=${place.height - 12}>${counts.map(([kind, word, count]) => html`<tspan class=${`s-${kind}`} dx="6">${number(count)} ${word}</tspan>`)}</text>` : html`<text class="note" x="28" y="36">${text(note.slice(0, 34), 36)}</text>`}</g>`;
}
