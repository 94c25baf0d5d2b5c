/** The waterfall: rows of steps over a scale of time. Only the rows and the time that are visible are drawn. */
import { serverNow } from "../core/api.js";
import { clock, duration, plural } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/view.js";
import { Button } from "../parts/basics.js";
import { Icon } from "../parts/icons.js";
import { text } from "../parts/text.js";
import { Axis, Backdrop } from "./axis.js";
import { Bars, Patterns } from "./bars.js";
import { Lines } from "./lines.js";
import { iconOf, rowsOf, workOf } from "./model.js";
import { makeScale, panned, toVirtual, zoomed } from "./scale.js";
import { Strip } from "./strip.js";
import { useGestures } from "./gestures.js";

/** @typedef {import("./model.js").Row} Row */
/** @typedef {import("./model.js").Timeline} Timeline */
/** @typedef {import("./scale.js").Window} Window */

const ROW = 28;
const OVERSCAN = 6;
const URL_DELAY = 250;

/** @param {string | null} given `start-end` as shares of the whole @param {number} total @returns {Window} */
function windowOf(given, total) {
  const match = /^([\d.]+)-([\d.]+)$/.exec(given ?? "");
  if (!match) return { start: 0, end: total };
  const [start, end] = [Number(match[1]), Number(match[2])];
  return end > start ? { start: start * total, end: Math.min(1, end) * total } : { start: 0, end: total };
}

/** The visible part of the scale, kept in the URL. @param {number} total */
function useZoom(total) {
  const { query } = useStore(route);
  const given = query.get("z");
  const [shares, setShares] = useState(given);
  const timer = useRef(/** @type {any} */ (0));
  useEffect(() => setShares(given), [given]);
  useEffect(() => () => clearTimeout(timer.current), []); // the URL of the next page has another zoom
  const window = windowOf(shares, total);
  /** @param {Window} next */
  const set = (next) => {
    const whole = next.end - next.start >= total * 0.9999;
    const value = whole ? null : `${(next.start / total).toFixed(7)}-${(next.end / total).toFixed(7)}`;
    setShares(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ z: value }), URL_DELAY);
  };
  return /** @type {[Window, (next: Window) => void]} */ ([window, set]);
}

/** The size of an element and its scroll position. @param {{current: any}} element */
function useViewport(element) {
  const [view, setView] = useState({ top: 0, height: 600, width: 1000 });
  useEffect(() => {
    const node = element.current;
    if (!node) return undefined;
    const read = () => setView((old) => (old.top === node.scrollTop && old.height === node.clientHeight && old.width === node.clientWidth ? old : { top: node.scrollTop, height: node.clientHeight, width: node.clientWidth }));
    const observer = new ResizeObserver(read);
    observer.observe(node);
    node.addEventListener("scroll", read, { passive: true });
    return () => {
      observer.disconnect();
      node.removeEventListener("scroll", read);
    };
  }, []);
  return view;
}

/**
 * @param {{pid: string, timeline: Timeline, children: Map<string, Timeline>, opened: Set<string>, onOpen: (row: Row) => void, selected: string | null, onSelect: (row: Row | null) => void, deadline: number | null, now: number}} props
 */
export function Waterfall({ pid, timeline, children, opened, onOpen, selected, onSelect, deadline, now: shownNow }) {
  const { query } = useStore(route);
  const folded = query.get("fold") !== "0";
  const [closed, setClosed] = useState(/** @type {Set<string>} */ (new Set()));
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const view = useViewport(scroller);
  const nameWidth = view.width < 700 ? 128 : 300;
  const width = Math.max(120, view.width - nameWidth - 8);
  const from = timeline.start;
  const ended = timeline.end;
  const now = ended ?? Math.max(shownNow, from + 1);

  const rows = useMemo(() => rowsOf(pid, timeline, children, { closed, opened }), [pid, timeline, children, closed, opened]);
  const work = useMemo(() => rows.flatMap((row) => (row.item ? workOf(row.item, now) : [])), [rows, ended ?? now]);
  const scale = useMemo(() => makeScale({ from, now, until: deadline ?? now, work, width, folded }), [from, now, deadline, work, width, folded]);
  const [window, setWindow] = useZoom(scale.total);
  /** @param {number} t */
  const x = (t) => ((toVirtual(scale, t) - window.start) / (window.end - window.start)) * width;
  const gestures = useGestures(scroller, { nameWidth, width, window, total: scale.total, setWindow });
  const first = Math.max(0, Math.floor(view.top / ROW) - OVERSCAN);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + OVERSCAN);
  const index = rows.findIndex((row) => row.id === selected);

  /** @param {Row} row */
  function toggle(row) {
    if (row.open === undefined) return;
    if (row.item?.child) onOpen(row);
    else {
      const next = new Set(closed);
      if (!next.delete(row.id)) next.add(row.id);
      setClosed(next);
    }
  }
  /** @param {number} by */
  function move(by) {
    const next = Math.max(0, Math.min(rows.length - 1, index + by));
    onSelect(rows[next]);
    const top = next * ROW;
    const node = scroller.current;
    if (node && (top < node.scrollTop || top > node.scrollTop + node.clientHeight - 5 * ROW)) node.scrollTop = top - node.clientHeight / 2;
  }
  const toggleFold = () => setQuery({ fold: folded ? "0" : null, z: null });
  const fit = () => setWindow({ start: 0, end: scale.total });
  useKeys({
    t: toggleFold, "+": () => setWindow(zoomed(window, scale.total, 0.6, 0.5)), "=": () => setWindow(zoomed(window, scale.total, 0.6, 0.5)),
    "-": () => setWindow(zoomed(window, scale.total, 1.7, 0.5)), 0: fit,
    ArrowLeft: () => setWindow(panned(window, scale.total, -0.15)), ArrowRight: () => setWindow(panned(window, scale.total, 0.15)),
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    Enter: () => (index < 0 ? false : toggle(rows[index])),
  });

  return html`<section class="timeline" aria-label="Timeline"><${Patterns} />
    <div class="row timeline-tools"><${Button} icon="fold" label="Fold idle time" hint="T" pressed=${folded} onClick=${toggleFold} />
      <span class="ink2 wide-only cut" title=${opened.size ? "work of the shown children included" : ""}>${duration(now - from)} ${folded && scale.folds ? html`shown as <b class="medium">${duration(scale.workMs)}</b> of work and ${plural(scale.folds, "fold")}` : ""}</span>
      <span class="right row legend wide-only"><i class="key worked"></i>worked <i class="key failed"></i>failed <i class="key waited"></i>waited <i class="key slept"></i>slept</span>
      <span class="segmented zoom" role="group" aria-label="Zoom"><button type="button" aria-label="Zoom out" onClick=${() => setWindow(zoomed(window, scale.total, 1.7, 0.5))}><${Icon} name="zoomOut" /></button><button type="button" aria-label="Zoom in" onClick=${() => setWindow(zoomed(window, scale.total, 0.6, 0.5))}><${Icon} name="zoomIn" /></button><button type="button" class="row" onClick=${fit}>Fit <kbd aria-hidden="true">0</kbd></button></span></div>
    <${Strip} scale=${scale} window=${window} work=${work} now=${now} items=${timeline.items} setWindow=${setWindow} />
    <div class="waterfall" ref=${scroller} ...${gestures}>
      <${Axis} scale=${scale} window=${window} width=${width} x=${x} now=${ended === null ? now : null} timeline=${timeline} end=${now} nameWidth=${nameWidth} />
      <div class="backdrop" aria-hidden="true"><${Backdrop} scale=${scale} window=${window} width=${width} height=${rows.length * ROW + 8} x=${x} now=${ended === null ? now : null} nameWidth=${nameWidth} /></div>
      <div class="rows" role="treegrid" tabindex="0" aria-label=${`Steps of ${pid}`} aria-rowcount=${rows.length} aria-activedescendant=${index >= first && index < last ? `row-${index}` : undefined} style=${{ height: `${rows.length * ROW}px` }}>
        ${rows.slice(first, last).map((row, offset) => html`<${RowView} key=${row.id} row=${row} position=${first + offset} selected=${row.id === selected} x=${x} now=${now} width=${width} nameWidth=${nameWidth} onSelect=${onSelect} onToggle=${toggle} />`)}
      </div>
      <${Lines} timeline=${timeline} x=${x} width=${width} nameWidth=${nameWidth} />
    </div></section>`;
}

/** @param {Row} row @param {number} now */
function stateWords(row, now) {
  const took = duration((row.end ?? now) - row.start);
  const item = row.item;
  if (!item) return took;
  const attempts = item.attempts?.length ?? 0;
  return `${item.type === "do" ? "step" : item.type}, ${item.status}, ${took}${attempts > 1 ? `, ${attempts} attempts` : ""}, started ${clock(item.start)}`;
}

/**
 * @param {{row: Row, position: number, selected: boolean, x: (t: number) => number, now: number, width: number, nameWidth: number, onSelect: (row: Row) => void, onToggle: (row: Row) => void}} props
 */
function RowView({ row, position, selected, x, now, width, nameWidth, onSelect, onToggle }) {
  const attempts = row.item?.attempts?.length ?? 0;
  const waits = row.item && row.end === null;
  return html`<div id=${`row-${position}`} role="row" class=${`w-row ${selected ? "selected" : ""}`} aria-level=${row.level} aria-rowindex=${position + 1} aria-selected=${String(selected)} aria-expanded=${row.open === undefined ? undefined : String(row.open)}
    style=${{ top: `${position * ROW}px` }} onClick=${() => onSelect(row)}>
    <div role="rowheader" class="w-name" style=${{ width: `${nameWidth}px`, paddingLeft: `${4 + Math.min(row.level, 6) * (nameWidth < 200 ? 4 : 15)}px` }}>
      ${row.open === undefined ? html`<span class="w-gap"></span>` : html`<button type="button" tabindex="-1" class=${`w-fold ${row.open ? "open" : ""}`} aria-label=${row.open ? "Fold" : "Unfold"} onClick=${(/** @type {Event} */ event) => { event.stopPropagation(); onToggle(row); }}><${Icon} name="chevron" size=${12} /></button>`}
      <${Icon} name=${iconOf(row)} size=${14} class=${waits && row.item?.type === "waitForEvent" ? "state s-waiting" : "ink3"} /><span class="cut mono bidi">${text(row.name, 200)}${row.hint ? html` <span class="ink3">${text(row.hint, 100)}</span>` : null}</span>
      ${attempts > 1 ? html`<span class="tag s-retrying" title=${`${attempts} attempts`}>${attempts}×</span>` : null}<span class=${`right w-took ${waits ? "state s-waiting" : "ink2"}`}>${duration((row.end ?? now) - row.start)}</span></div>
    <div role="gridcell" class="w-plot"><span class="sr">${stateWords(row, now)}</span><svg width=${width} height=${ROW} aria-hidden="true"><${Bars} row=${row} x=${x} now=${now} width=${width} /></svg></div></div>`;
}

/** The time that the timeline shows as now: whole seconds of the server's clock. @param {boolean} ended */
export function useTimelineNow(ended) {
  const [now, setNow] = useState(serverNow());
  useEffect(() => {
    if (ended) return undefined;
    const timer = setInterval(() => setNow(serverNow()), 1000);
    return () => clearInterval(timer);
  }, [ended]);
  return now;
}
