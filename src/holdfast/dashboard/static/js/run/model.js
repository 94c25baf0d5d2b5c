/** The rows of the waterfall, made from the timelines of a run and of its unfolded children. */

/** @typedef {import("../types.d.ts").Attempt} Attempt */
/** @typedef {import("../types.d.ts").Item} Item */
/** @typedef {import("../types.d.ts").Timeline} Timeline */
/** @typedef {import("../types.d.ts").Row} Row */

export const ROOT = "#run"; // no key of a step

/** The attempts of an item; a single successful attempt is not sent if it equals its item. @param {Item} item @returns {Attempt[]} */
export function attemptsOf(item) {
  if (item.attempts?.length) return item.attempts;
  return (item.type === "do" || item.type === "node") && item.status === "completed" ? [{ n: 1, start: item.start, end: item.end, outcome: "ok" }] : [];
}

/** The times of work of an item. The duration of a lost attempt is not known; its time until the takeover is idle. @param {Item} item @param {number} now */
export function workOf(item, now) {
  /** @type {[number, number][]} */
  const work = [];
  if (item.attempts?.length) for (const attempt of item.attempts) work.push([attempt.start, attempt.outcome === "lost" ? attempt.start : attempt.end ?? now]);
  else if ((item.type === "do" || item.type === "node") && item.status !== "waiting") work.push([item.start, item.end ?? now]);
  else if (item.status !== "waiting" && item.type !== "sleep" && item.type !== "waitForEvent" && item.type !== "child" && item.end !== null) work.push([item.start, item.start]);
  return work;
}

/**
 * @param {string} pid
 * @param {Timeline} timeline
 * @param {Map<string, Timeline>} children timelines by pid
 * @param {{closed: Set<string>, opened: Set<string>}} folding rows that are folded, children that are unfolded
 * @returns {Row[]}
 */
export function rowsOf(pid, timeline, children, { closed, opened }) {
  /** @type {Row[]} */
  const rows = [{ id: ROOT, kind: "run", level: 1, name: pid, start: timeline.start, end: timeline.end, open: timeline.items.length ? !closed.has(ROOT) : undefined, pid }];
  if (!closed.has(ROOT)) addItems(rows, pid, timeline.items, 2, "", children, { closed, opened });
  return rows;
}

/**
 * @param {Row[]} rows
 * @param {string} pid
 * @param {Item[]} items
 * @param {number} level
 * @param {string} prefix
 * @param {Map<string, Timeline>} children
 * @param {{closed: Set<string>, opened: Set<string>}} folding
 */
function addItems(rows, pid, items, level, prefix, children, folding) {
  const groups = groupsOf(items);
  const done = new Set();
  for (const item of items) {
    const group = item.parallel === undefined ? undefined : groups.get(item.parallel);
    if (!group || group.length < 2) addItem(rows, pid, item, level, prefix, children, folding);
    else if (!done.has(item.parallel)) {
      done.add(item.parallel);
      const id = `${prefix}parallel ${item.parallel}`;
      const open = !folding.closed.has(id);
      rows.push({ id, kind: "group", level, name: "parallel", hint: `${group.length} tasks`, start: group[0].start, end: endOf(group), open, pid });
      if (open) for (const member of group) addItem(rows, pid, member, level + 1, prefix, children, folding);
    }
  }
}

/** @param {Item[]} items */
function groupsOf(items) {
  /** @type {Map<number, Item[]>} */
  const groups = new Map();
  for (const item of items) {
    if (item.parallel === undefined) continue;
    const group = groups.get(item.parallel);
    if (group) group.push(item);
    else groups.set(item.parallel, [item]);
  }
  return groups;
}

/** @param {Item[]} items @returns {number | null} */
function endOf(items) {
  let latest = 0;
  for (const item of items) {
    if (item.end === null) return null;
    latest = Math.max(latest, item.end);
  }
  return latest;
}

/**
 * @param {Row[]} rows
 * @param {string} pid
 * @param {Item} item
 * @param {number} level
 * @param {string} prefix
 * @param {Map<string, Timeline>} children
 * @param {{closed: Set<string>, opened: Set<string>}} folding
 */
function addItem(rows, pid, item, level, prefix, children, folding) {
  const id = `${prefix}${item.key}`;
  const open = item.child ? folding.opened.has(id) : undefined;
  rows.push({ id, kind: "step", level, name: item.name, hint: hintOf(item), start: item.start, end: item.end, item, open, pid });
  const nested = open && item.child ? children.get(item.child) : undefined;
  if (nested && item.child) addItems(rows, item.child, nested.items, level + 1, `${id} › `, children, folding);
}

/** @param {Item} item */
function hintOf(item) {
  if (item.child) return undefined;
  if (item.key !== item.name && item.key.startsWith(item.name)) return item.key.slice(item.name.length);
  return undefined;
}

/**
 * The times in which no worker held a run: from the loss of a worker to the takeover.
 * @param {Timeline} timeline
 * @param {number} now
 */
export function gapsOf(timeline, now) {
  return timeline.holders.flatMap((holder, index) => (holder.lost && holder.end !== null ? [{ from: holder.end, until: timeline.holders[index + 1]?.start ?? now, lostBy: holder.worker ?? "" }] : []));
}

const ICONS = /** @type {Record<string, string>} */ ({ do: "step", node: "step", sleep: "sleep", waitForEvent: "mail", child: "child", ask: "ask", send: "send", reply: "ask" });

/** @param {Row} row */
export function iconOf(row) {
  if (row.kind === "run") return "code";
  return row.kind === "group" ? "lanes" : ICONS[row.item?.type ?? "do"] ?? "right";
}

/**
 * Merge changed items into a timeline.
 * @param {Timeline | undefined} before
 * @param {Timeline} after
 * @returns {Timeline}
 */
export function mergeTimeline(before, after) {
  if (!before || after.items.length >= after.total) return after;
  const changed = new Map(after.items.map((item) => [item.key, item]));
  const items = before.items.map((item) => {
    const next = changed.get(item.key);
    changed.delete(item.key);
    return next ?? item;
  });
  return { ...after, items: [...items, ...changed.values()] };
}
