/** The overview: causes that need attention, and figures. */
import { caller } from "../core/api.js";
import { number, rate, duration, plural } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { useFallback, useLive } from "../core/live.js";
import { useGet, usePolling } from "../core/resource.js";
import { go, href, route, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useState } from "../core/view.js";
import { Age, Empty, heads, Meter, Place, Segmented } from "../parts/basics.js";
import { AttentionRow, openCause } from "../parts/attention.js";
import { RunsChart, Spark, WINDOWS } from "../parts/charts.js";
import { Icon } from "../parts/icons.js";
import { Queues } from "../parts/queues.js";
import { Glyph } from "../parts/status.js";
import { text } from "../parts/text.js";
import { WorkerTiles } from "../parts/worker-tiles.js";

const SLOW_POLL = 15_000;
const MOST_WORKFLOWS = 10;
const MOST_STEPS = 5;

/** @param {number[]} [values] */
const sum = (values = []) => values.reduce((total, value) => total + value, 0);

/** @param {any} stats @returns {Record<string, number>} runs by status, of all workflows */
function totals(stats) {
  /** @type {Record<string, number>} */
  const sums = {};
  for (const byStatus of Object.values(stats.runs)) {
    for (const [status, count] of Object.entries(/** @type {Record<string, number>} */ (byStatus))) sums[status] = (sums[status] ?? 0) + count;
  }
  return sums;
}

export function Screen() {
  if (caller()?.confined) return html`<h1 class="sr">Overview</h1><div class="card"><${Empty} sentence="You may see some of the runs; the overview is about all of them. The list of runs shows yours." /></div>`;
  return html`<${Overview} />`;
}

function Overview() {
  const stats = useGet("_stats");
  const attention = useGet("_attention");
  const workers = useGet("_workers");
  const queues = useGet("_queues");
  const hour = useGet("_series", { window: "1h" });
  const [version, setVersion] = useState(-1);
  useLive("topic=overview", {
    overview(data) {
      stats.change(() => data.stats);
      if (data.attention.version !== version) {
        setVersion(data.attention.version);
        if (version !== -1) attention.refresh();
      }
    },
    open: (again) => (again ? [stats, attention, workers, queues].forEach((each) => each.refresh()) : undefined),
  });
  useFallback(stats.refresh);
  usePolling(() => [attention, workers, queues, hour].forEach((each) => each.refresh()), SLOW_POLL);
  return html`<h1 class="sr">Overview</h1><${Place} resource=${stats} rows=${2}>${(/** @type {any} */ data) => html`<${Figures} stats=${data} workers=${workers.data?.workers ?? []} queues=${queues.data?.queues ?? []} attention=${attention.data} />`}<//>
    <div class="overview"><div><${Attention} resource=${attention} hour=${hour.data} /><${Rates} /></div>
      <div><${Workflows} stats=${stats.data} hour=${hour.data} /><${Queues} brief resource=${queues} /><${Limits} />
        <section class="card"><header><h2>Workers</h2><a class="right ink3" href=${href(["workers"])}>${workers.data ? plural(workers.data.workers.filter((/** @type {any} */ each) => each.alive).length, "alive", "alive") : "all"}</a></header><${Place} resource=${workers} rows=${3}>${(/** @type {any} */ data) => html`<${WorkerTiles} workers=${data.workers} />`}<//></section><${Slowest} steps=${stats.data?.slowestSteps ?? []} /></div></div>`;
}

/** @param {{stats: any, workers: any[], queues: any[], attention: any}} props */
function Figures({ stats, workers, queues, attention }) {
  const runs = totals(stats);
  const parked = sum(attention?.groups.map((/** @type {any} */ group) => (group.kind === "parked" ? group.count : 0)));
  const failed = sum(Object.values(stats.errors));
  const late = queues.find((queue) => queue.oldestDue && !queue.workers);
  /** @param {string} state @param {any} [note] */
  const figure = (state, note, wide = false) => html`<a class=${`figure s-${state} ${wide ? "wide-only" : ""}`} href=${href(["runs"], { q: `status:${state}` })}><div class="label"><${Glyph} state=${state} />${state}</div><div class="value">${number(runs[state] ?? 0)}${note}</div></a>`;
  return html`<div class="figures"><section><h2>Now</h2>${figure("active")}${figure("waiting")}${figure("paused", parked ? html`<small class="state">${number(parked)} parked</small>` : null)}</section>
    <section><h2>Ended and kept</h2>${figure("complete", null, true)}${figure("errored", failed ? html`<small class="state">${number(failed)} in 1 h</small>` : null)}${figure("cancelled", null, true)}${figure("terminated", null, true)}</section>
    <section><h2>Engine</h2><a class="figure" href=${href(["workers"])}><div class="label"><${Icon} name="chip" size=${14} />workers alive</div><div class="value">${number(workers.filter((each) => each.alive).length)}<small class="ink3">of ${number(workers.length)}</small></div></a>
      <div class="figure"><div class="label"><${Icon} name="clock" size=${14} />oldest due</div><div class="value"><${Age} at=${stats.oldestDue} />${late ? html`<small class="state s-errored">${text(late.name, 16)}</small>` : null}</div></div>
      <div class="figure wide-only"><div class="label"><${Icon} name="list" size=${14} />due, not claimed</div><div class="value">${number(stats.due)}</div></div>
      <div class="figure wide-only"><div class="label"><${Icon} name="play" size=${14} />started / min</div><div class="value">${rate(stats.startedPerMinute)}</div></div></section></div>`;
}

/** @param {{resource: any, hour: any}} props */
function Attention({ resource, hour }) {
  const [at, setAt] = useState(0);
  const groups = resource.data?.groups ?? [];
  useKeys({
    j: () => setAt(Math.min(groups.length - 1, at + 1)), ArrowDown: () => (groups.length ? setAt(Math.min(groups.length - 1, at + 1)) : false),
    k: () => setAt(Math.max(0, at - 1)), ArrowUp: () => (groups.length ? setAt(Math.max(0, at - 1)) : false),
    Enter: () => (groups[at] ? openCause(groups[at], false) : false), a: () => (groups[at] ? openCause(groups[at], true) : false),
    "/": () => go(href(["runs"])),
  });
  return html`<section class="card"><header><h2>Needs attention</h2><span class="ink3">${resource.data ? `${plural(groups.length, "cause")} · ${plural(resource.data.runs, "run")}` : ""}</span>
      <span class="right row ink3 small wide-only" aria-hidden="true"><kbd>J</kbd><kbd>K</kbd> move <kbd>Enter</kbd> open <kbd>A</kbd> act</span></header>
    <${Place} resource=${resource} rows=${4}>${() => (groups.length
      ? html`<ul>${groups.map((/** @type {any} */ group, /** @type {number} */ index) => html`<${AttentionRow} group=${group.kind === "errored" ? { ...group, series: hour?.workflows[group.workflowName]?.errored?.slice(-24) } : group} at=${index === at} first=${index === 0} onPoint=${() => setAt(index)} />`)}</ul>`
      : html`<${Empty} sentence="Nothing needs attention: no run is parked, failing or waiting for a worker." />`)}<//></section>`;
}

function Rates() {
  const { query } = useStore(route);
  const shown = query.get("window") ?? "1h";
  const series = useGet("_series", { window: shown });
  usePolling(series.refresh, SLOW_POLL);
  const unit = duration(series.data?.stepMs ?? 6e4).replace("1 min", "minute");
  return html`<section class="card"><header><h2>Runs per ${unit}</h2><span class="legend-item"><i class="line"></i>started</span><span class="legend-item s-complete"><i></i>complete</span><span class="legend-item s-errored wide-only"><i></i>errored, below on its own scale</span>
    <span class="right"><${Segmented} label="Window of the chart" value=${shown} options=${WINDOWS} onChange=${(/** @type {string} */ window) => setQuery({ window: window === "1h" ? null : window })} /></span></header>
    <div class="panel"><${Place} resource=${series}>${(/** @type {any} */ data) => html`<${RunsChart} series=${{ ...data, from: Date.parse(data.start) }} />`}<//></div></section>`;
}

/** @param {{stats: any, hour: any}} props */
function Workflows({ stats, hour }) {
  const names = Object.keys(stats?.runs ?? {});
  const of = hour?.workflows ?? {};
  /** @param {string} name */
  const ended = (name) => sum(of[name]?.ended);
  /** @param {string} name */
  const failed = (name) => sum(of[name]?.errored);
  const shown = [...names].sort((a, b) => ended(b) - ended(a) || a.localeCompare(b)).slice(0, MOST_WORKFLOWS);
  return html`<section class="card"><header><h2>Workflows</h2><a class="right ink3" href=${href(["workflows"])}>all ${names.length}</a></header>
    <table class="table plain">${heads("name", "ended, last hour", "/min|num", "step p95|num", "errors|num")}<tbody>${shown.map((name) => {
      const [all, bad] = [ended(name), failed(name)];
      return html`<tr><td class="cut"><a class="mono" href=${href(["workflows", name])}>${text(name, 40)}</a></td><td><${Spark} values=${(of[name]?.ended ?? []).slice(-40)} errors=${(of[name]?.errored ?? []).slice(-40)} width=${130} label=${`runs of ${name} that ended, per minute`} /></td><td class="num">${rate(all / 60)}</td><td class="num ink2 nowrap">${duration(stats.stepP95Ms[name])}</td><td class=${`num ${bad && bad / all > 0.01 ? "state s-errored" : "ink3"}`}>${bad ? `${((100 * bad) / all).toFixed(1)} %` : "–"}</td></tr>`;
    })}</tbody></table>${names.length ? null : html`<${Empty} sentence="No workflow has runs yet." />`}</section>`;
}

/** The slowest steps of the latest runs. @param {{steps: any[]}} props */
function Slowest({ steps }) {
  if (!steps.length) return null;
  return html`<section class="card"><header><h2>Slowest steps</h2><span class="right ink3">latest runs</span></header><table class="table plain">${heads("step", "workflow", "calls|num", "p50|num", "p95|num")}
    <tbody>${steps.slice(0, MOST_STEPS).map((/** @type {any} */ step) => html`<tr><td class="mono cut">${text(step.step, 40)}</td><td class="cut"><a class="mono ink2" href=${href(["workflows", step.workflowName])}>${text(step.workflowName, 40)}</a></td><td class="num ink2">${number(step.count)}</td><td class="num nowrap">${duration(step.p50Ms)}</td><td class="num nowrap">${duration(step.p95Ms)}</td></tr>`)}</tbody></table></section>`;
}

function Limits() {
  const limits = useGet("_limits");
  usePolling(limits.refresh, SLOW_POLL);
  const found = limits.data?.limits ?? [];
  if (!found.length) return null;
  return html`<section class="card"><header><h2>Limits</h2><a class="right ink3" href=${href(["flow"])}>all ${found.length}</a></header><table class="table plain">${heads("name", "in use|two-wide", "waiting|num")}
    <tbody>${found.slice(0, 6).map((/** @type {any} */ limit) => {
      const all = limit.concurrency == null ? null : limit.concurrency * Math.max(1, limit.keys);
      return html`<tr><td class="mono cut">${text(limit.name, 40)}</td><td class="num nowrap">${number(limit.used)}${all === null ? "" : ` of ${number(all)}`}</td><td>${all === null ? null : html`<${Meter} share=${limit.used / all} state="active" />`}</td><td class=${`num ${limit.waiting ? "state s-waiting" : "ink2"}`}>${number(limit.waiting)}</td></tr>`;
    })}</tbody></table></section>`;
}
