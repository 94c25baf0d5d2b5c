/** The tab with the waterfall and the detail of the selected row. */
import { get, instancePath } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { route, setQuery, splitPid } from "../core/router.js";
import { useStore } from "../core/store.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/view.js";
import { Place } from "../parts/basics.js";
import { Detail, RunDetail } from "./detail.js";
import { mergeTimeline, ROOT } from "./model.js";
import { useTimelineNow, Waterfall } from "./waterfall.js";

/** @typedef {import("./model.js").Timeline} Timeline */
/** @typedef {import("./model.js").Row} Row */

const OPEN_AT_FIRST = 3;

/** The timeline of a run; later requests are for changed items only. @param {(rest: string) => string} path @param {number} runNumber @param {any} live */
function useTimeline(path, runNumber, live) {
  const known = useRef(/** @type {Timeline | undefined} */ (undefined));
  const resource = useResource(`timeline ${path("")} ${runNumber}`, async (signal) => {
    const next = await get(path("timeline"), { runNumber, since: known.current?.version }, signal);
    known.current = mergeTimeline(known.current, next);
    return known.current;
  });
  const version = live?.runNumber === runNumber ? `${live.version} ${live.events} ${live.logs} ${live.status}` : null;
  useEffect(() => {
    if (version !== null && known.current) resource.refresh();
  }, [version]);
  return resource;
}

/** The timelines of unfolded children. @param {Timeline | undefined} timeline */
function useChildren(timeline) {
  const [opened, setOpened] = useState(/** @type {Set<string>} */ (new Set()));
  const [children, setChildren] = useState(/** @type {Map<string, Timeline>} */ (new Map()));
  const first = useRef(true);

  /** @param {string} pid */
  function load(pid) {
    const { workflow, id } = splitPid(pid);
    get(instancePath(workflow, id, "timeline")).then((loaded) => setChildren((old) => new Map(old).set(pid, loaded)), () => undefined);
  }
  /** @param {Row} row */
  function toggle(row) {
    const next = new Set(opened);
    if (!next.delete(row.id)) {
      next.add(row.id);
      if (row.item?.child) load(row.item.child);
    }
    setOpened(next);
  }
  useEffect(() => {
    if (!timeline) return;
    const nested = timeline.items.filter((item) => item.child);
    if (first.current && nested.length && nested.length <= OPEN_AT_FIRST) {
      setOpened(new Set(nested.map((item) => item.key)));
      for (const item of nested) load(String(item.child));
    } else for (const item of nested) if (item.end === null && item.child && children.has(item.child)) load(item.child);
    first.current = false;
  }, [timeline]);
  return { opened, children, toggle };
}

/** @param {any} props */
export function Tab({ workflow, id, runNumber, run, live, path, act, target, onPainted, onTiming }) {
  const { query } = useStore(route);
  const resource = useTimeline(path, runNumber, live);
  const timeline = resource.data;
  useEffect(() => {
    if (timeline || resource.error) onPainted();
  }, [timeline === undefined, resource.error]);
  useEffect(() => {
    if (timeline) onTiming({ workingMs: timeline.workingMs, worker: timeline.holders[timeline.holders.length - 1]?.worker });
  }, [timeline]);
  const { opened, children, toggle } = useChildren(timeline);
  const current = runNumber === run.meta.runNumber;
  const now = useTimelineNow(timeline?.end != null);
  const deadline = current && timeline?.end == null && run.meta.whyParts?.until ? Date.parse(run.meta.whyParts.until) : null;
  const selected = query.get("sel");
  const pid = `${workflow}/${id}`;
  const item = useMemo(() => findItem(selected, timeline, children), [selected, timeline, children]);
  /** @param {Row | null} row */
  const select = (row) => setQuery({ sel: row === null || (row.kind !== "step") ? (row?.id ?? null) : row.id });
  const close = () => setQuery({ sel: null });
  return html`<${Place} resource=${resource} rows=${10}>${() => html`<div class="split">
    <${Waterfall} pid=${pid} timeline=${timeline} children=${children} opened=${opened} onOpen=${toggle} selected=${selected} onSelect=${select} deadline=${deadline} now=${now} />
    ${item ? html`<${Detail} key=${selected} item=${item.item} pid=${item.pid ?? pid} runNumber=${item.pid ? undefined : runNumber} now=${now} act=${act} target=${target} onClose=${close} />` : null}
    ${selected === ROOT && current ? html`<${RunDetail} run=${run} pid=${pid} now=${now} act=${act} target=${target} onClose=${close} />` : null}</div>`}<//>`;
}

/**
 * The item of a selected row: `key`, or `key of child › key` in unfolded children.
 * @param {string | null} selected
 * @param {Timeline | undefined} timeline
 * @param {Map<string, Timeline>} children
 */
function findItem(selected, timeline, children) {
  if (!selected || !timeline) return null;
  let items = timeline.items;
  /** @type {string | null} */
  let pid = null;
  const parts = selected.split(" › ");
  for (const part of parts.slice(0, -1)) {
    const parent = items.find((item) => item.key === part);
    if (!parent?.child) return null;
    pid = parent.child;
    items = children.get(pid)?.items ?? [];
  }
  const item = items.find((each) => each.key === parts[parts.length - 1]);
  return item ? { item, pid } : null;
}
