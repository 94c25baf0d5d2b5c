/** The list of runs of all workflows: filter, live rows, selection. */
import { announce } from "../core/announce.js";
import { caller, get, may, serverNow } from "../core/api.js";
import { filterText, listQuery, parseFilter, STATUSES, withCondition } from "../core/filter.js";
import { number, plural } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { useFallback, useLive } from "../core/live.js";
import { preferences, setPreferences } from "../core/prefs.js";
import { useGet, useResource } from "../core/resource.js";
import { go, href, route, runHref, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/view.js";
import { nextMove, takeMove } from "../parts/actions.js";
import { Button, Empty, Loading, Problem, Segmented } from "../parts/basics.js";
import { BulkBar } from "../parts/bulk.js";
import { HistogramStrip, WINDOWS } from "../parts/charts.js";
import { Icon } from "../parts/icons.js";
import { Menu } from "../parts/menu.js";
import { COLUMNS, RunTable, targetOf } from "../parts/run-table.js";
import { openStart } from "../parts/start.js";
import { Glyph } from "../parts/status.js";
import { text } from "../parts/text.js";
import { TokenBox } from "../parts/token-box.js";

/** @typedef {import("../core/filter.js").Condition} Condition */

const PAGE_SIZE = 50;

/** @type {[string, string][]} */
const VIEWS = [["All runs", ""], ["Failed, last hour", "status:errored ended:1h"], ["Waiting", "status:waiting"], ["Paused and parked", "status:paused"]];

/** @param {any} run */
export const pidOf = (run) => `${run.workflowName}/${run.id}`;

/** Rows of the list, kept current by the live stream. @param {URLSearchParams} query */
function useRuns(query) {
  const [turn, setTurn] = useState(0);
  const [newer, setNewer] = useState(0);
  const [gone, setGone] = useState(/** @type {Set<string>} */ (new Set()));
  const key = `${query}`;
  const list = useResource(`${key}#${turn}`, async (signal) => {
    const page = await get("_instances", query, signal);
    setNewer(0);
    setGone(new Set());
    return page;
  });
  const live = new URLSearchParams(query);
  live.set("topic", "instances");
  useLive(list.error?.status === 400 ? null : `${live}`, {
    reset: (data) => merge(data.instances),
    rows(data) {
      merge(data.changed ?? []);
      if (data.gone?.length) setGone((old) => new Set([...old, ...data.gone]));
      if (data.newer !== undefined && data.newer !== newer) {
        setNewer(data.newer);
        if (data.newer) announce(plural(data.newer, "new run"));
      }
    },
  }, turn);
  useFallback(list.refresh);

  /** @param {any[]} changed */
  function merge(changed) {
    const byPid = new Map(changed.map((run) => [pidOf(run), run]));
    list.change((page) => ({ ...page, instances: page.instances.map((/** @type {any} */ run) => {
      const next = byPid.get(pidOf(run));
      return next ? { ...next, changedAt: next.why !== run.why || next.details.status !== run.details.status ? Date.now() : run.changedAt } : run;
    }) }));
  }
  return { list, newer, gone, again: () => setTurn(turn + 1) };
}

/** Completions of the filter box. @param {any[]} rows */
function useVocabulary(rows) {
  const all = caller()?.confined === false;
  const stats = useGet(all ? "_stats" : null);
  const vocabulary = useMemo(() => {
    /** @type {Record<string, Set<string>>} */
    const values = { workflow: new Set(Object.keys(stats.data?.runs ?? {})), status: new Set(STATUSES), error: new Set(Object.keys(stats.data?.errors ?? {})), since: new Set(["5min", "1h", "24h", "7d"]), ended: new Set(["5min", "1h", "24h"]), queue: new Set(), version: new Set() };
    for (const run of rows) {
      values.workflow.add(run.workflowName);
      if (run.meta?.queue) values.queue.add(run.meta.queue);
      if (run.meta?.version) values.version.add(run.meta.version);
      for (const [key, value] of Object.entries(run.meta?.search ?? {})) if (!(key in {})) (values[key] ??= new Set()).add(String(value).slice(0, 60));
    }
    return Object.fromEntries(Object.entries(values).map(([key, set]) => [key, [...set].sort()]));
  }, [stats.data, rows]);
  return { vocabulary, stats: stats.data };
}

/** Counts by status, where the statistics of the server have them: without other conditions than the workflow. @param {any} stats @param {Condition[]} conditions */
function countsOf(stats, conditions) {
  const others = conditions.filter((condition) => condition.key !== "workflow" && condition.key !== "status");
  if (!stats || others.length) return null;
  const workflow = conditions.find((condition) => condition.key === "workflow")?.value;
  /** @type {Record<string, number>} */
  const counts = {};
  for (const [name, byStatus] of Object.entries(stats.runs)) {
    if (workflow !== undefined && name !== workflow) continue;
    for (const [status, count] of Object.entries(/** @type {Record<string, number>} */ (byStatus))) counts[status] = (counts[status] ?? 0) + count;
  }
  return counts;
}

export function Screen() {
  const { query } = useStore(route);
  const { columns, views } = useStore(preferences);
  const conditions = useMemo(() => parseFilter(query.get("q") ?? ""), [query.get("q")]);
  const cursor = query.get("cursor");
  const request = useMemo(() => {
    const next = listQuery(conditions, serverNow());
    next.set("pageSize", String(PAGE_SIZE));
    if (cursor) next.set("cursor", cursor);
    if (query.get("order")) next.set("order", String(query.get("order")));
    return next;
  }, [query.get("q"), cursor, query.get("order")]);
  const { list, newer, gone, again } = useRuns(request);
  const rows = list.data?.instances ?? [];
  useEffect(() => scrollTo(0, 0), [query.get("q"), cursor]);
  const { vocabulary, stats } = useVocabulary(rows);
  const [selected, setSelected] = useState(/** @type {Set<string>} */ (new Set()));
  const [whole, setWhole] = useState(false);
  const [at, setAt] = useState(-1);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const counts = countsOf(stats, conditions);
  const status = conditions.find((condition) => condition.key === "status")?.value ?? null;

  /** @param {Condition[]} next */
  const filter = (next) => {
    setSelected(new Set());
    setWhole(false);
    setQuery({ q: filterText(next), cursor: null });
  };
  /** @param {string} pid */
  const toggle = (pid) => {
    const next = new Set(selected);
    if (!next.delete(pid)) next.add(pid);
    setWhole(false);
    setSelected(next);
  };
  const showNew = () => {
    setQuery({ cursor: null });
    again();
  };
  /** @param {number} by */
  const move = (by) => {
    const next = Math.max(0, Math.min(rows.length - 1, at + by));
    setAt(next);
    document.querySelector(`[data-row="${next}"]`)?.scrollIntoView({ block: "nearest" });
  };
  const current = rows[at];
  useKeys({
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    Enter: () => (current ? go(runHref(current.workflowName, current.id)) : false),
    x: () => (current && may("manage") ? toggle(pidOf(current)) : false),
    a: () => (current ? act(current, list.refresh) : false),
    ".": () => (newer ? showNew() : false),
    "/": () => input.current?.focus(),
    Escape: () => (selected.size ? setSelected(new Set()) : false),
  });

  return html`<h1 class="sr">Runs</h1>
    <div class="row views">${[...VIEWS, ...views.map((view) => [view.name, view.query])].map(([name, filterQuery]) => html`<a class="view" href=${href(["runs"], { q: filterQuery })} aria-current=${filterQuery === filterText(conditions) ? "page" : undefined}>${text(name, 40)}</a>`)}
      <${SaveView} conditions=${conditions} /><span class="right">${may("create") ? html`<${Button} label="Start a run" hint="N" onClick=${() => openStart()} />` : null}</span></div>
    <${TokenBox} conditions=${conditions} vocabulary=${vocabulary} onChange=${filter} inputRef=${input} />
    <div class="row wrap tallies"><button type="button" class="tally" aria-pressed=${String(status === null)} onClick=${() => filter(withCondition(conditions, "status", null))}>All <span>${counts ? number(Object.values(counts).reduce((sum, count) => sum + count, 0)) : ""}</span></button>
      ${STATUSES.map((each) => html`<button type="button" class=${`tally s-${each}`} aria-pressed=${String(status === each)} onClick=${() => filter(withCondition(conditions, "status", status === each ? null : each))}><${Glyph} state=${each} />${each} <span>${counts ? number(counts[each] ?? 0) : ""}</span></button>`)}
      <span class="right row">${newer ? html`<button type="button" class="pill" onClick=${showNew}><${Icon} name="play" size=${12} />${newer >= 100 ? "100 or more new runs" : plural(newer, "new run")} <kbd>.</kbd></button>` : null}
        <${ColumnMenu} columns=${columns} rows=${rows} /></span></div>
    <${Histogram} conditions=${conditions} />
    ${list.error ? html`<${Problem} error=${list.error} onRetry=${list.refresh} />` : null}
    ${list.data === undefined ? (list.slow && !list.error ? html`<${Loading} rows=${10} />` : null) : html`
      <${RunTable} rows=${rows} columns=${columns} selected=${selected} whole=${whole} gone=${gone} at=${at} selectable=${may("manage")} onToggle=${toggle} onAct=${(/** @type {any} */ run) => act(run, list.refresh)}
        onAll=${() => setSelected(selected.size === rows.length ? new Set() : new Set(rows.map(pidOf)))} />
      ${rows.length ? null : html`<${Empty} sentence=${conditions.length ? "No run matches this filter." : "There are no runs yet."} command=${conditions.length ? undefined : "holdfast instances create -w WORKFLOW"} />`}
      <${Pager} data=${list.data} count=${rows.length} />`}
    ${selected.size || whole ? html`<${BulkBar} selected=${selected} whole=${whole} conditions=${conditions} rows=${rows} onWhole=${() => setWhole(true)} onClear=${() => { setSelected(new Set()); setWhole(false); }} onDone=${again} />` : null}`;
}

/** @param {any} run @param {() => void} done */
function act(run, done) {
  const target = targetOf(run);
  const move = nextMove(target);
  if (move) takeMove(move, target, done);
  else go(runHref(run.workflowName, run.id));
}

/** @param {{conditions: Condition[]}} props */
function SaveView({ conditions }) {
  const { views } = useStore(preferences);
  const filterQuery = filterText(conditions);
  if (!filterQuery || VIEWS.some(([, known]) => known === filterQuery)) return null;
  const saved = views.find((view) => view.query === filterQuery);
  if (saved) return html`<button type="button" class="view quiet" onClick=${() => setPreferences({ views: views.filter((view) => view !== saved) })}><${Icon} name="minus" size=${12} />Forget view</button>`;
  return html`<button type="button" class="view quiet" onClick=${() => setPreferences({ views: [...views, { name: conditions.map((condition) => condition.value).join(" ").slice(0, 40), query: filterQuery }] })}><${Icon} name="plus" size=${12} />Save view</button>`;
}

/** @param {{columns: string[], rows: any[]}} props */
function ColumnMenu({ columns, rows }) {
  const attributes = [...new Set(rows.flatMap((run) => Object.keys(run.meta?.search ?? {})))].slice(0, 12);
  /** @param {string} key */
  const toggle = (key) => setPreferences({ columns: columns.includes(key) ? columns.filter((each) => each !== key) : [...columns, key] });
  return html`<${Menu} label="Columns" button=${html`<${Icon} name="columns" />Columns`}>
    ${[...Object.keys(COLUMNS), ...attributes.map((name) => `search.${name}`)].map((key) => html`<label><input type="checkbox" class="check" checked=${columns.includes(key)} onChange=${() => toggle(key)} />${text(COLUMNS[key] ?? key.slice(7), 40)}</label>`)}<//>`;
}

/** @param {{conditions: Condition[]}} props */
function Histogram({ conditions }) {
  const { query } = useStore(route);
  const shown = query.get("window") ?? "1h";
  const workflow = conditions.find((condition) => condition.key === "workflow")?.value ?? "";
  const series = useGet(caller()?.confined === false ? "_series" : null, { window: shown, workflow });
  if (!series.data) return null;
  return html`<figure class="strip"><div class="row between"><figcaption class="ink3 small">${workflow ? html`runs of <code>${text(workflow, 64)}</code>` : "runs of all workflows"}, by time of start and end</figcaption>
    <${Segmented} label="Window of the chart" value=${shown} options=${WINDOWS} onChange=${(/** @type {string} */ window) => setQuery({ window })} /></div>
    <${HistogramStrip} series=${{ ...series.data, from: Date.parse(series.data.start) }} /></figure>`;
}

/** @param {{data: any, count: number}} props */
function Pager({ data, count }) {
  const order = route.get().query.get("order");
  return html`<div class="row pager"><span class="ink3">${plural(count, "run")} on this page, ${order === "asc" ? "oldest first" : "newest first"}</span><span class="right row">
    <${Button} quiet icon="left" label="Newer" disabled=${!data.previousCursor} onClick=${() => setQuery({ cursor: data.previousCursor }, { replace: false })} />
    <${Button} label="Older" icon="right" disabled=${!data.nextCursor} onClick=${() => setQuery({ cursor: data.nextCursor }, { replace: false })} /></span></div>`;
}
