/** Line icons of 16 px, hidden from screen readers: each has a word beside it, or a button with a label. */
import { html } from "../core/view.js";

/** @type {Record<string, string>} paths of a 16 × 16 grid */
const PATHS = {
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5 14 14",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6ZM8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13M13 3l-1.2 1.2M4.2 11.8 3 13",
  moon: "M13.5 9.6A6 6 0 0 1 6.4 2.5a6 6 0 1 0 7.1 7.1Z",
  home: "M2.5 7.5 8 2.8l5.5 4.7V13.5h-11Z",
  list: "M5.5 4H14M5.5 8H14M5.5 12H14M2.2 4h.2M2.2 8h.2M2.2 12h.2",
  flow: "M2 4.5h2.5c4 0 3 7 7 7H14M2 11.5h2.5c4 0 3-7 7-7H14M12 2.5l2 2-2 2M12 9.5l2 2-2 2",
  gauge: "M2.5 12a6 6 0 1 1 11 0M8 10l3-4",
  more: "M2.6 8a.7.7 0 1 0 1.4 0 .7.7 0 1 0-1.4 0M7.3 8a.7.7 0 1 0 1.4 0 .7.7 0 1 0-1.4 0M12 8a.7.7 0 1 0 1.4 0 .7.7 0 1 0-1.4 0",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3l8 5-8 5Z",
  fork: "M4 2.5v3.2c0 2 4 1.6 4 4.3v3.5M12 2.5v3.2c0 2-4 1.6-4 4.3M2.6 4 4 2.5 5.4 4M10.6 4 12 2.5 13.4 4",
  ban: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11ZM4.2 4.2l7.6 7.6",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  send: "M14 2 7 9M14 2l-4.5 12L7 9 2 6.5Z",
  mail: "M2 4h12v8.5H2ZM2 4.5l6 4.5 6-4.5",
  clock: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11ZM8 5v3.2l2 1.3",
  chip: "M4.5 4.5h7v7h-7ZM6.5 1.8v2.7M9.5 1.8v2.7M6.5 11.5v2.7M9.5 11.5v2.7M1.8 6.5h2.7M1.8 9.5h2.7M11.5 6.5h2.7M11.5 9.5h2.7",
  outbox: "M9 3h4v4M13 3 7.5 8.5M11.5 9v4h-8.5V4.5H7",
  code: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  chain: "M1.8 6h3.4v4H1.8ZM10.8 6h3.4v4h-3.4ZM5.2 8h5.6",
  graph: "M3.2 6.4a1.6 1.6 0 1 0 0 3.2 1.6 1.6 0 0 0 0-3.2ZM12.6 2a1.6 1.6 0 1 0 0 3.2 1.6 1.6 0 0 0 0-3.2ZM12.6 10.8a1.6 1.6 0 1 0 0 3.2 1.6 1.6 0 0 0 0-3.2ZM4.8 7.4 11 4.2M4.8 8.6l6.2 3.2",
  step: "M3 3h10v10H3ZM5.5 8l2 2 3.2-4",
  sleep: "M13 9.2A5.6 5.6 0 0 1 6.8 3a5.6 5.6 0 1 0 6.2 6.2Z",
  child: "M4 2.5v5.5a2 2 0 0 0 2 2h4M10 8h3.5v4H10ZM4 2.4h.1",
  lanes: "M3 2.5v11M6 4h7M6 8h7M6 12h4.5",
  ask: "M2.5 3h11v7.5H8L5 13v-2.5H2.5Z",
  zoomIn: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5 14 14M5 7h4M7 5v4",
  zoomOut: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5 14 14M5 7h4",
  fold: "M1.5 8H5l1.5-4 3 8L11 8h3.5",
  close: "M4 4l8 8M12 4l-8 8",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  copy: "M5.5 5.5h8v8h-8ZM10.5 5.5v-3h-8v8h3",
  columns: "M2.5 3h11v10h-11ZM6.2 3v10M9.8 3v10",
  chevron: "M4.5 6.5 8 10l3.5-3.5",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  first: "M3.5 3.5v9M12 3.5 6.5 8l5.5 4.5Z",
  last: "M12.5 3.5v9M4 3.5 9.5 8 4 12.5Z",
  back: "M11 3.5 5 8l6 4.5Z",
  forward: "M5 3.5 11 8l-6 4.5Z",
  warning: "M8 2.5 14.5 13.5h-13ZM8 6.5v3.2M8 11.6v.1",
  skull: "M8 2a5.2 5.2 0 0 0-3 9.4V13.5h6v-2.1A5.2 5.2 0 0 0 8 2ZM6 7.4v.2M10 7.4v.2M7 13.5v-1.6M9 13.5v-1.6",
  audit: "M3.5 2.5h9v11h-9ZM6 5.5h4M6 8h4M6 10.5h2.5",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9",
};

/** @param {{name: string, class?: string, size?: number}} props */
export function Icon({ name, size = 16, class: className = "" }) {
  return html`<svg class=${className} width=${size} height=${size} viewBox="0 0 16 16" fill="none" stroke="currentColor"
    stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${PATHS[name] ?? ""} /></svg>`;
}

export function Logo() {
  return html`<svg width="20" height="20" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.7"
    stroke-linecap="round" aria-hidden="true"><circle cx="10" cy="3.8" r="2" />
    <path d="M10 6v6M10 12c-3.6 0-3.2 4.8-7 5M10 12c3.6 0 3.2 4.8 7 5M10 12c-1 2-1.5 3-2 5.3M10 12c1 2 1.5 3 2 5.3" /></svg>`;
}
