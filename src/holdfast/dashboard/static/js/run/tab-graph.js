/** The picture of a graph's run, and the detail of a node. */
import { useNow } from "../core/clock.js";
import { duration, moment, number } from "../core/format.js";
import { useGet } from "../core/resource.js";
import { route, runHref, setQuery, splitPid } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html } from "../core/view.js";
import { possible } from "../parts/actions.js";
import { Button, IconButton, Meter, Place, Segmented } from "../parts/basics.js";
import { ErrorView } from "../parts/error.js";
import { GraphView } from "../parts/graph-view.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { Glyph, Status } from "../parts/status.js";
import { text } from "../parts/text.js";

const MOST_ITEMS = 100;
const LEGEND = ["ok", "started", "retrying", "error", "skipped", "pending"];

/** @param {any} props */
export function Tab({ path, live, runNumber, act, target }) {
  const { query } = useStore(route);
  const now = useNow();
  const graph = useGet(path("graph"), { runNumber }, `${live?.version} ${live?.status}`);
  const down = query.get("down") === "1";
  const scale = Number(query.get("scale") ?? 1);
  const selected = query.get("node");
  const nodes = graph.data?.nodes ?? [];
  const node = nodes.find((/** @type {any} */ each) => each.key === selected);
  /** @param {number} factor */
  const zoom = (factor) => setQuery({ scale: Math.max(0.2, Math.min(2, scale * factor)).toFixed(2) });
  return html`<div class="row wrap graph-bar">${LEGEND.map((state) => html`<span class="legend-item"><${Glyph} state=${state} />${state}</span>`)}<span class="legend-item"><i class="line"></i>critical path</span>
      <span class="right row"><${Segmented} label="Direction" value=${down ? "down" : "across"} options=${[["across", "Across"], ["down", "Down"]]} onChange=${(/** @type {string} */ next) => setQuery({ down: next === "down" ? "1" : null })} />
      <span class="segmented zoom" role="group" aria-label="Zoom"><button type="button" aria-label="Zoom out" onClick=${() => zoom(0.8)}><${Icon} name="zoomOut" /></button><button type="button" aria-label="Zoom in" onClick=${() => zoom(1.25)}><${Icon} name="zoomIn" /></button><button type="button" onClick=${() => setQuery({ scale: null })}>Fit</button></span></span></div>
    <${Place} resource=${graph}>${() => html`<div class="split"><div class="graph" tabindex="0" role="region" aria-label="picture of the graph"><${GraphView} nodes=${nodes} down=${down} scale=${scale} now=${now} selected=${selected} onSelect=${(/** @type {string} */ key) => setQuery({ node: key })} />
      <ul class="sr" aria-label="nodes">${nodes.map((/** @type {any} */ each) => html`<li>${each.key}: ${each.state}${each.after?.length ? `, after ${each.after.join(", ")}` : ""}</li>`)}</ul></div>
      ${node ? html`<${NodeDetail} key=${node.key} node=${node} path=${path} runNumber=${runNumber} now=${now} act=${act} target=${runNumber === target.runNumber && target} />` : null}</div>`}<//>`;
}

/** Items that are not done first, then the slowest. @param {any[]} items */
function sorted(items) {
  /** @param {any} item */
  const rank = (item) => (item.state === "ok" || item.state === "complete" ? item.start - (item.end ?? item.start) : -1e15);
  return [...items].sort((a, b) => rank(a) - rank(b) || a.n - b.n);
}

const CHART = 366;

/** How many items took how long. @param {{took: any}} props */
function Durations({ took }) {
  const most = Math.max(...took.counts);
  const step = CHART / took.counts.length;
  const marks = /** @type {[string, number, string][]} */ ([["p50", took.p50Ms, "end"], ["p95", took.p95Ms, "start"]]);
  return html`<section><h3>How long items took</h3><div class="chart"><svg height="74" viewBox=${`0 0 ${CHART} 74`} role="img" aria-label=${`half of the items took at most ${duration(took.p50Ms)}, 95 % at most ${duration(took.p95Ms)}`}>
    ${took.counts.map((/** @type {number} */ count, /** @type {number} */ index) => html`<rect class="complete" x=${index * step} y=${56 - (count / most) * 44} width=${step - 1} height=${(count / most) * 44} />`)}<line class="axis" x2=${CHART} y1="56" y2="56" />
    ${marks.map(([word, ms, anchor]) => { const x = (ms / took.stepMs) * step; return html`<line class="release" x1=${x} x2=${x} y1="12" y2="56" /><text x=${x} y="9" text-anchor=${x < 30 ? "start" : x > CHART - 30 ? "end" : anchor}>${word}</text>`; })}
    <text y="70">0</text><text x=${CHART} y="70" text-anchor="end">${duration(took.stepMs * took.counts.length)}</text></svg></div></section>`;
}

/** @param {{node: any, path: (rest: string) => string, runNumber: number, now: number, act: (name: string) => void, target: any}} props `target`: false for an earlier run, which takes no actions */
function NodeDetail({ node, path, runNumber, now, act, target }) {
  const items = useGet(node.items ? path("graph/items") : null, { node: node.key, runNumber }, JSON.stringify(node.items));
  const step = useGet(path("step"), { key: node.key, runNumber }, node.state);
  const took = items.data?.took;
  return html`<aside class="detail" aria-label=${`Detail of ${node.key}`}><header class="row"><h2 class="mono cut">${text(node.key, 200)}</h2><${Status} state=${node.state} word=${node.state} /><span class="right"><${IconButton} icon="close" label="Close the detail" onClick=${() => setQuery({ node: null })} /></span></header><div class="detail-body">
    ${node.items ? html`<section><div class="row"><b class="value">${number(node.items.ok)}</b> <span class="ink2">of ${number(node.items.total)} items</span></div><${Meter} share=${node.items.ok / Math.max(1, node.items.total)} state="complete" /></section>` : null}
    <section><dl class="pairs"><dt>started</dt><dd>${moment(node.start, now)}</dd><dt>took</dt><dd>${duration(node.start ? (node.end ?? now) - node.start : null)}</dd>${took ? html`<dt>an item took</dt><dd>${duration(took.p50Ms)} <span class="ink3">p50</span>, ${duration(took.p95Ms)} <span class="ink3">p95</span></dd>` : null}<dt>attempts</dt><dd>${number(node.attempts)}</dd>${node.after?.length ? html`<dt>after</dt><dd class="mono">${text(node.after.join(", "), 300)}</dd>` : null}${node.worker ? html`<dt>worker</dt><dd class="mono">${text(node.worker, 80)}</dd>` : null}${node.child ? html`<dt>run</dt><dd><a class="link mono" href=${runHref(splitPid(node.child).workflow, splitPid(node.child).id)}>${text(node.child, 120)}</a></dd>` : null}</dl></section>
    ${node.error ? html`<section><h3>Error</h3><${ErrorView} error=${step.data?.step?.error ?? node.error} /></section>` : null}
    ${took ? html`<${Durations} took=${took} />` : null}
    ${items.data ? html`<section><h3>Items</h3><ol>${sorted(items.data.items).slice(0, MOST_ITEMS).map((/** @type {any} */ item) => html`<li class="row"><code class="ink2 item-n">${item.n}</code><${Glyph} state=${item.state} label=${true} /><span class="cut">${item.error ? text(item.error.name, 80) : item.state}${item.attempts > 1 ? `, attempt ${item.attempts}` : ""}</span><span class="right ink2">${duration(item.start ? (item.end ?? now) - item.start : null)}</span></li>`)}</ol>${items.data.total > MOST_ITEMS ? html`<p class="ink3">${number(items.data.total - MOST_ITEMS)} more</p>` : null}</section>` : null}
    ${step.data?.step?.status === "completed" ? html`<section><h3>Output</h3><${Json} value=${step.data.step.result} /></section>` : null}</div>
    <footer class="row">${target && possible("fork", target) ? html`<${Button} icon="fork" label="Fork from here…" onClick=${() => { setQuery({ sel: node.key }); act("fork"); }} />` : null}${target && node.state === "error" && possible("retry", target) ? html`<${Button} icon="retry" label="Retry…" onClick=${() => act("retry")} />` : null}</footer></aside>`;
}
