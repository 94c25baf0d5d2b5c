/**
 * A layered layout of a directed acyclic graph: each node is one layer behind its last predecessor; nodes of a layer
 * are ordered by the mean position of their neighbours, so that few edges cross.
 */

/** @typedef {{key: string, after: string[], width: number, height: number}} Box */
/** @typedef {{x: number, y: number, width: number, height: number, layer: number}} Place */

const LAYER_GAP = 56;
const NODE_GAP = 26;
const SWEEPS = 6;

/** @param {Box[]} boxes @returns {Map<string, number>} */
export function layersOf(boxes) {
  const byKey = new Map(boxes.map((box) => [box.key, box]));
  /** @type {Map<string, number>} */
  const layers = new Map();
  /** @type {Set<string>} */
  const open = new Set();
  /** @param {string} key @returns {number} */
  const visit = (key) => {
    const known = layers.get(key);
    if (known !== undefined) return known;
    if (open.has(key)) return 0; // a cycle; the server has none
    open.add(key);
    const before = (byKey.get(key)?.after ?? []).filter((other) => byKey.has(other));
    const layer = before.length ? Math.max(...before.map(visit)) + 1 : 0;
    open.delete(key);
    layers.set(key, layer);
    return layer;
  };
  for (const box of boxes) visit(box.key);
  return layers;
}

/**
 * Places from left to right; `down` exchanges the axes.
 * @param {Box[]} boxes
 * @param {boolean} [down]
 * @returns {{places: Map<string, Place>, width: number, height: number}}
 */
export function layout(boxes, down = false) {
  const layers = layersOf(boxes);
  const columns = orderedColumns(boxes, layers);
  const thick = (/** @type {Box} */ box) => (down ? box.height : box.width);
  const long = (/** @type {Box} */ box) => (down ? box.width : box.height);
  const extents = columns.map((column) => column.reduce((sum, box) => sum + long(box) + NODE_GAP, -NODE_GAP));
  const tallest = Math.max(0, ...extents);
  /** @type {Map<string, Place>} */
  const places = new Map();
  let along = 24;
  columns.forEach((column, layer) => {
    let across = 24 + (tallest - extents[layer]) / 2;
    const depth = Math.max(0, ...column.map(thick));
    for (const box of column) {
      places.set(box.key, down ? { x: across, y: along, width: box.width, height: box.height, layer } : { x: along, y: across, width: box.width, height: box.height, layer });
      across += long(box) + NODE_GAP;
    }
    along += depth + LAYER_GAP;
  });
  const size = along - LAYER_GAP + 24;
  return down ? { places, width: tallest + 48, height: size } : { places, width: size, height: tallest + 48 };
}

/** @param {Box[]} boxes @param {Map<string, number>} layers @returns {Box[][]} */
function orderedColumns(boxes, layers) {
  /** @type {Box[][]} */
  const columns = [];
  for (const box of boxes) (columns[layers.get(box.key) ?? 0] ??= []).push(box);
  /** @type {Map<string, string[]>} */
  const followers = new Map();
  for (const box of boxes) for (const before of box.after) followers.set(before, [...(followers.get(before) ?? []), box.key]);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const position = new Map(columns.flatMap((column) => column.map((box, index) => /** @type {[string, number]} */ ([box.key, (index + 0.5) / column.length]))));
    for (const column of columns) {
      const weight = new Map(column.map((box, index) => {
        const near = (sweep % 2 ? followers.get(box.key) ?? [] : box.after).map((key) => position.get(key)).filter((value) => value !== undefined);
        return [box.key, near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : (index + 0.5) / column.length];
      }));
      column.sort((a, b) => (weight.get(a.key) ?? 0) - (weight.get(b.key) ?? 0));
    }
  }
  return columns;
}

/**
 * The path of an edge between two places.
 * @param {Place} from
 * @param {Place} to
 * @param {boolean} down
 */
export function edgePath(from, to, down) {
  if (down) {
    const [x1, y1, x2, y2] = [from.x + from.width / 2, from.y + from.height, to.x + to.width / 2, to.y - 6];
    const bend = Math.max(18, (y2 - y1) / 2);
    return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  }
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x - 6, to.y + to.height / 2];
  const bend = Math.max(18, Math.min(60, (x2 - x1) / 2));
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
