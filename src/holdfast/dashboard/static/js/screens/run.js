/** The page of one run: its `why`, the next action, the tabs. */
import { caller, instancePath, may, post } from "../core/api.js";
import { duration, moment, number } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { useFallback, useLive } from "../core/live.js";
import { useGet, useModule } from "../core/resource.js";
import { go, href, route, runHref, setQuery } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useRef, useState } from "../core/view.js";
import { ACTIONS, nextMove, openAction, possible, takeMove } from "../parts/actions.js";
import { Button, Empty, Loading, Problem, Span, Tabs } from "../parts/basics.js";
import { openRedeliver } from "../parts/confirm.js";
import { Icon } from "../parts/icons.js";
import { Menu } from "../parts/menu.js";
import { toast } from "../parts/overlay.js";
import { Source } from "../parts/source.js";
import { Badge, Glyph, runState } from "../parts/status.js";
import { shortWorker, text } from "../parts/text.js";
import { Why } from "../parts/why.js";

/** @typedef {{workflow: string, id: string, runNumber: number, run: any, live: any, timeline?: any, path: (rest: string) => string}} RunProps */

/** @type {Record<string, () => Promise<{Tab: unknown}>>} each tab is loaded when it is first shown */
const TABS = {
  timeline: () => import("../run/tab-timeline.js"),
  graph: () => import("../run/tab-graph.js"),
  chain: () => import("../run/tab-chain.js"),
  code: () => import("../run/tab-code.js"),
  logs: () => import("../run/tab-logs.js"),
  mailbox: () => import("../run/tab-mailbox.js"),
  family: () => import("../run/tab-family.js"),
  streams: () => import("../run/tab-streams.js"),
  audit: () => import("../run/tab-audit.js"),
  facts: () => import("../run/tab-facts.js"),
};

/** @param {any} meta @param {any} live */
function tabsOf(meta, live) {
  const debug = caller()?.debug && may("debug");
  const kind = meta.kind ?? "workflow";
  return [
    ...(kind === "graph" ? [{ key: "graph", label: "Graph" }] : []),
    ...(kind === "chain" ? [{ key: "chain", label: "Chain" }] : []),
    { key: "timeline", label: "Timeline" },
    ...(debug && kind === "workflow" ? [{ key: "code", label: "Code" }] : []),
    { key: "logs", label: "Logs", count: live?.logs },
    { key: "mailbox", label: "Mailbox", count: live?.events },
    { key: "family", label: "Family", count: familySize(meta) },
    ...(live?.streams ? [{ key: "streams", label: "Streams", count: live.streams }] : []),
    { key: "audit", label: "Audit" },
    { key: "facts", label: "Facts" },
  ];
}

/** @param {any} meta */
function familySize(meta) {
  return (meta.parent ? 1 : 0) + (meta.children?.length ?? 0) + (meta.links?.length ?? 0) + (meta.monitors?.length ?? 0) + (meta.forks?.length ?? 0) + (meta.origin ? 1 : 0);
}

void TABS.timeline(); // most pages of a run show it first; it is loaded beside the first request

export function Screen() {
  const { path, query } = useStore(route);
  const [, workflow = "", id = ""] = path;
  return html`<${RunPage} key=${`${workflow}/${id}`} workflow=${workflow} id=${id} query=${query} />`;
}

const DETAILS_DELAY = 150;
const DETAILS_EVERY = 2000;
const LONGEST_PAINT = 3000; // a tab that paints later than this does not hold the details back

/**
 * A run for its page. The first request reads the run as lists show it. The position in the code, for which the server
 * replays the run, and the live stream follow after the first paint, and again at most every two seconds.
 * @param {string} workflow
 * @param {string} id
 */
function useRun(workflow, id) {
  const found = useGet("_instances", { workflow, idPrefix: id, pageSize: 100, order: "asc" });
  const [ready, setReady] = useState(false);
  const instance = useGet(ready ? instancePath(workflow, id) : null);
  const [live, setLive] = useState(/** @type {any} */ (null));
  const [gone, setGone] = useState(false);
  const timer = useRef(/** @type {any} */ (null));
  const listed = found.data?.instances.find((/** @type {any} */ each) => each.id === id);
  const kind = listed?.meta?.kind ?? "workflow";
  const paints = (route.get().query.get("tab") ?? (kind === "workflow" ? "timeline" : kind)) === "timeline";
  useEffect(() => {
    if (found.data === undefined && found.error === undefined) return undefined;
    const wait = setTimeout(() => setReady(true), !listed ? 0 : paints ? LONGEST_PAINT : DETAILS_DELAY);
    return () => clearTimeout(wait);
  }, [found.data !== undefined || found.error !== undefined]);
  useLive(!ready || instance.error?.status === 404 ? null : `topic=run&workflow=${encodeURIComponent(workflow)}&id=${encodeURIComponent(id)}`, {
    run(data) {
      setLive(data);
      timer.current ??= setTimeout(() => {
        timer.current = null;
        instance.refresh();
      }, DETAILS_EVERY);
    },
    gone: () => setGone(true),
  });
  useFallback(() => (instance.error?.status === 404 ? undefined : instance.refresh()));
  const base = instance.data ?? (listed && { id, details: listed.details, meta: listed.meta });
  return { instance, live, gone, run: base && withLive(base, live), onPainted: () => setReady(true) };
}

/** A run, updated with the state from the live stream. @param {any} run @param {any} live */
function withLive(run, live) {
  if (!live || live.runNumber < run.meta.runNumber || Date.parse(live.updatedAt) < Date.parse(run.meta.updatedAt)) return run;
  const { whyParts } = run.meta;
  const same = live.whyParts && whyParts?.kind === live.whyParts.kind && whyParts?.stepKey === live.whyParts.stepKey;
  const parts = same ? { position: whyParts.position, ...live.whyParts } : live.whyParts ?? whyParts;
  return { ...run, details: { ...run.details, status: live.status }, meta: { ...run.meta, runNumber: live.runNumber, why: same ? run.meta.why : live.why, whyParts: parts, updatedAt: live.updatedAt, completedAt: live.completedAt, owner: live.owner } };
}

/** @param {{workflow: string, id: string, query: URLSearchParams}} props */
function RunPage({ workflow, id, query }) {
  const { instance, run, live, gone, onPainted } = useRun(workflow, id);
  if (gone || instance.error?.code === "INSTANCE_NOT_FOUND") return html`<div class="page"><${Empty} sentence=${`There is no run ${text(workflow, 64)}/${text(id, 100)}; it may have been deleted.`} command="holdfast instances list" /></div>`;
  if (run === undefined) return instance.error ? html`<${Problem} error=${instance.error} onRetry=${instance.refresh} />` : instance.slow ? html`<${Loading} rows=${8} />` : null;
  return html`<${Loaded} workflow=${workflow} id=${id} run=${run} live=${live} query=${query} refresh=${instance.refresh} onPainted=${onPainted} />`;
}

/** @param {{workflow: string, id: string, run: any, live: any, query: URLSearchParams, refresh: () => void, onPainted: () => void}} props */
function Loaded({ workflow, id, run, live, query, refresh, onPainted }) {
  const meta = run.meta;
  const tabs = tabsOf(meta, live);
  const tab = tabs.some((each) => each.key === query.get("tab")) ? String(query.get("tab")) : tabs[0].key;
  const shownRun = query.get("run") === null ? meta.runNumber : Number(query.get("run"));
  const { module, failure } = useModule(TABS, tab);
  const [timing, setTiming] = useState(/** @type {any} */ (null));
  const [parked, setParked] = useState(/** @type {Parked} */ ({ types: [], done: refresh }));
  const target = { workflow, id, status: run.details.status, kind: meta.kind, runNumber: meta.runNumber, whyParts: meta.whyParts };
  const move = nextMove(target);
  /** @param {string} name */
  const act = (name) => (possible(name, target) ? openAction(name, target, { done: refresh, initial: name === "fork" ? { before: (query.get("sel") ?? "").replace(/^#run$/, "") } : {} }) : undefined);
  /** @param {number} by */
  const turn = (by) => {
    const index = tabs.findIndex((each) => each.key === tab);
    setQuery({ tab: tabs[(index + by + tabs.length) % tabs.length].key });
  };
  useKeys({
    a: () => (parked.types.length && may("manage") ? openRedeliver(workflow, id, parked.done) : move ? takeMove(move, target, refresh) : false), e: () => act("event"), r: () => act("retry"), f: () => act("fork"),
    p: () => act(run.details.status === "paused" ? "resume" : "pause"), "[": () => turn(-1), "]": () => turn(1),
    Escape: () => (query.get("sel") ? setQuery({ sel: null }) : go(href(["runs"]))),
  });
  return html`<div class="page"><${Head} target=${target} run=${run} move=${move} parked=${parked} act=${act} refresh=${refresh} />
    <${Tabs} tabs=${tabs} current=${tab} hrefOf=${(/** @type {string} */ key) => runHref(workflow, id, { tab: key, run: query.get("run") })}><${Facts} run=${run} shownRun=${shownRun} timing=${timing} /><//>
    ${failure ? html`<${Problem} error=${failure} />` : null}
    ${module ? html`<${module.Tab} key=${`${tab} ${shownRun}`} workflow=${workflow} id=${id} runNumber=${shownRun} run=${run} live=${live} act=${act} target=${target} onPainted=${onPainted} onTiming=${setTiming} onParked=${setParked} path=${(/** @type {string} */ rest) => instancePath(workflow, id, rest)} />` : null}</div>`;
}

const PRIMARY = ["pause", "resume", "retry", "fork", "cancel"];

/** @typedef {{types: string[], done: () => void}} Parked types of parked outbound events */

/** @param {{target: any, run: any, move: import("../parts/actions.js").Move | null, parked: Parked, act: (name: string) => void, refresh: () => void}} props */
function Head({ target, run, move, parked, act, refresh }) {
  const meta = run.meta;
  const shown = PRIMARY.filter((name) => possible(name, target) && name !== move?.action);
  const rest = Object.keys(ACTIONS).filter((name) => name !== "reply" && !shown.includes(name) && possible(name, target));
  const chips = /** @type {[string, any][]} */ ([...Object.entries(meta.search ?? {}).slice(0, 4), ["run", meta.runNumber], ...(meta.version ? [["version", meta.version]] : []), ...(meta.workflowVersion ? [[meta.kind, `version ${meta.workflowVersion}`]] : []), ...(meta.nativeStatus ? [["native", meta.nativeStatus]] : []), ...(meta.queue ? [["queue", meta.queue]] : [])]);
  const redeliver = parked.types.length > 0 && may("manage");
  return html`<div class="run-head"><div class="row wrap"><nav class="crumbs row" aria-label="where"><a class="ink2" href=${href(["runs"])}>Runs</a><span class="ink3">/</span><a class="mono ink2 cut" href=${href(["runs"], { q: `workflow:${target.workflow}` })}>${text(target.workflow, 64)}</a><span class="ink3">/</span><h1 class="mono id cut">${text(target.id, 100)}</h1></nav>
      <${Badge} state=${runState(target.status, meta.whyParts)} /><span class="chips row wrap">${chips.map(([key, value]) => html`<span class="chip">${text(key, 40)} <b class="cut bidi">${text(typeof value === "number" ? number(value) : value, 60)}</b></span>`)}</span>
      <span class="right row wrap actions">${caller()?.example && meta.owner ? html`<${KillButton} target=${target} />` : null}
        ${shown.map((name) => html`<${Button} icon=${ACTIONS[name].icon} label=${name === "fork" || name === "cancel" ? `${ACTIONS[name].label}…` : ACTIONS[name].label} onClick=${() => act(name)} />`)}
        ${rest.length ? html`<${Menu} label="More actions" items=${rest.map((name) => ({ label: `${ACTIONS[name].label}…`, icon: ACTIONS[name].icon, hint: ACTIONS[name].key, onClick: () => act(name) }))} />` : null}</span></div>
    <div class="row why-row"><div class="grow"><div class="why-head"><${WhyIcon} parts=${meta.whyParts} state=${runState(target.status, meta.whyParts)} /><span aria-live="off"><${Why} why=${meta.why ?? target.status} place=${!meta.whyParts?.position} /></span></div>
      ${meta.whyParts?.position ? html`<${Position} position=${meta.whyParts.position} step=${meta.whyParts.kind === "ended" ? meta.whyParts.name : undefined} target=${target} />` : null}
      ${parked.types.length ? html`<div class="gave-up row state s-paused"><${Glyph} state="parked" /><span class="ink2">Parked outbound events: ${parked.types.slice(0, 3).map((type, index) => html`${index ? ", " : ""}<code>${text(type, 80)}</code>`)}${parked.types.length > 3 ? ` and ${parked.types.length - 3} more` : ""}.</span></div>` : null}</div>
      ${redeliver ? html`<${Button} primary large icon="outbox" label="Redeliver…" hint="A" onClick=${() => openRedeliver(target.workflow, target.id, parked.done)} />` : null}
      ${move ? html`<${Button} primary=${!redeliver} large icon=${move.icon} label=${move.label} hint=${redeliver ? undefined : "A"} onClick=${() => takeMove(move, target, refresh)} />` : null}</div></div>`;
}

const WHY_ICONS = /** @type {Record<string, string>} */ ({ event: "mail", message: "mail", retry: "retry", sleep: "clock", timer: "clock", start: "clock", child: "child", reply: "ask", node: "graph", step: "step", due: "chip", no_code: "chip", paused: "pause", pausing: "pause", parked: "pause" });

/** @param {{parts: any, state: string}} props */
function WhyIcon({ parts, state }) {
  return html`<span class=${`state s-${state}`}><${Icon} name=${WHY_ICONS[parts?.kind] ?? "step"} size=${18} /></span>`;
}

/** The line of code at which the run waits, or that raised its error in `step`. @param {{position: {file: string, line: number}, step?: string, target: any}} props */
function Position({ position, step, target }) {
  const debug = caller()?.debug && may("debug") && target.status !== "errored" && target.kind !== "chain" && target.kind !== "graph";
  const stack = useGet(debug ? instancePath(target.workflow, target.id, "stack") : null, {}, `${position.file}:${position.line}`);
  const frame = stack.data?.tasks?.flatMap((/** @type {any} */ task) => task.frames).find((/** @type {any} */ each) => each.line === position.line && each.file.endsWith(position.file.split("/").pop()));
  return html`<div class="position mono row"><a class="link" href=${runHref(target.workflow, target.id, { tab: "code" })}>${text(position.file, 200)}:${position.line}</a>${step ? html`<span class="ink3 cut">in step ${text(step, 100)}</span>` : null}${frame?.source ? html`<span class="ink3">${position.line}</span><span class="cut"><${Source} text=${frame.source} /></span>` : null}</div>`;
}

/** @param {{target: any}} props */
function KillButton({ target }) {
  const kill = () => post("_example/kill", { workflow: target.workflow, id: target.id }).then((answer) => toast(`Killed the worker ${answer.worker}`, { state: "lost" }), (error) => toast(error.message, { state: "errored" }));
  return html`<${Button} icon="skull" label="Kill the worker" onClick=${kill} />`;
}

/** @param {{run: any, shownRun: number, timing: any}} props `timing`: from the timeline, once it is shown */
function Facts({ run, shownRun, timing }) {
  const meta = run.meta;
  const runs = meta.runs ?? meta.runNumber + 1;
  return html`<div class="run-facts row wide-only ink2">${runs > 1 ? html`<label class="row">run <select class="select compact" value=${String(shownRun)} onChange=${(/** @type {any} */ event) => setQuery({ run: Number(event.target.value) === meta.runNumber ? null : event.target.value, sel: null, z: null })}>${Array.from({ length: Math.min(runs, 200) }, (_, index) => html`<option value=${String(meta.runNumber - index)}>${meta.runNumber - index}</option>`)}</select></label>` : null}
    <span>started <b>${moment(meta.startedAt ?? meta.createdAt)}</b></span><span>for <b><${Span} from=${meta.startedAt ?? meta.createdAt} until=${meta.completedAt} /></b></span>${timing ? html`<span>working <b>${duration(timing.workingMs)}</b></span>` : null}${meta.owner || timing?.worker ? html`<span class="cut">${meta.owner ? "held by" : "last held by"} <code>${shortWorker(meta.owner ?? timing.worker)}</code></span>` : null}</div>`;
}

