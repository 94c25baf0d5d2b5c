/** The slider over the facts of a run: dots with names for few facts, a range for many. */
import { html, onText } from "../core/view.js";
import { text } from "../parts/text.js";

const MOST_DOTS = 24;
const GAP = 68;

/** The key of a fact as a label: the engine's keys of children and messages begin with `#child `, `#ask `. @param {any} fact */
function labelOf(fact) {
  if (fact?.kind === "child" && fact.state === "result") return "its end";
  const name = String(fact?.key ?? "").replace(/^#\w+ /, "");
  return name.length > 10 ? `${name.slice(0, 9)}…` : name;
}

/** @param {{facts: any[], total: number, at: number, onStep: (position: number) => void}} props */
export function Scrubber({ facts, total, at, onStep }) {
  const range = html`<input type="range" min="0" max=${total} value=${at} aria-label="position in the facts" aria-valuetext=${`fact ${at} of ${total}`} onInput=${onText((value) => onStep(Number(value)))} />`;
  if (total > MOST_DOTS || facts.length < total) return html`<div class="dots">${range}</div>`;
  const width = total * GAP + 40;
  /** @param {number} position */
  const x = (position) => 20 + position * GAP;
  return html`<div class="dots"><svg width=${width} height="44" role="img" aria-label=${`fact ${at} of ${total}`}><line class="rail" x1=${x(0)} x2=${x(total)} y1="14" y2="14" /><line class="done" x1=${x(0)} x2=${x(at)} y1="14" y2="14" />
    ${Array.from({ length: total + 1 }, (_, position) => {
      const fact = facts[position - 1];
      const state = fact?.ok === false ? "errored" : fact?.kind === "sleep" ? "cancelled" : fact?.kind === "waitForEvent" ? "waiting" : "complete";
      return html`<circle class=${`s-${state} ${position <= at ? "past" : ""} ${position === at ? "here" : ""}`} cx=${x(position)} cy="14" r=${position === at ? 7 : 4.5} onClick=${() => onStep(position)} /><text class=${position === at ? "here-name" : ""} x=${x(position)} y="36" text-anchor="middle">${position === 0 ? "start" : text(labelOf(fact), 12)}</text>`;
    })}</svg><span class="sr">${range}</span></div>`;
}
