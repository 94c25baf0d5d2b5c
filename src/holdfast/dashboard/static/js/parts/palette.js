/** The palette (Ctrl K): find a run by its id, go to a page, or start a command. */
import { may } from "../core/api.js";
import { toggleTheme } from "../core/prefs.js";
import { useGet } from "../core/resource.js";
import { go, href, runHref } from "../core/router.js";
import { html, onText, useState } from "../core/view.js";
import { Icon } from "./icons.js";
import { Help } from "./help.js";
import { closeOverlay, Dialog, openOverlay } from "./overlay.js";
import { openStart } from "./start.js";
import { Status } from "./status.js";

/** @typedef {{label: string, icon: string, run: () => void, status?: string}} Entry */

/** @returns {Entry[]} */
function commands() {
  /** @type {[string, string, string[]][]} */
  const pages = [["Overview", "home", []], ["Runs", "list", ["runs"]], ["Workflows", "code", ["workflows"]], ["Flow: schedules, limits, queues", "gauge", ["flow"]], ["Workers", "chip", ["workers"]], ["Audit", "audit", ["audit"]]];
  const entries = pages.map(([label, icon, path]) => ({ label, icon, run: () => go(href(path)) }));
  if (may("create")) entries.push({ label: "Start a run…", icon: "play", run: () => openStart() });
  entries.push({ label: "Light or dark", icon: "sun", run: toggleTheme });
  entries.push({ label: "Keys and settings", icon: "list", run: () => openOverlay(Help) });
  return entries;
}

export function openPalette() {
  openOverlay(Palette);
}

/** @param {string} typed */
function useRuns(typed) {
  const { workflow, prefix } = typed.includes("/") ? { workflow: typed.slice(0, typed.lastIndexOf("/")), prefix: typed.slice(typed.lastIndexOf("/") + 1) } : { workflow: "", prefix: typed };
  const wanted = /^[\w-]{1,100}$/.test(prefix) ? prefix : null;
  const found = useGet(wanted === null ? null : "_instances", { workflow, idPrefix: wanted, pageSize: 8 });
  return wanted === null ? [] : found.data?.instances ?? [];
}

export function Palette() {
  const [typed, setTyped] = useState("");
  const [index, setIndex] = useState(0);
  const runs = useRuns(typed.trim());
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  /** @type {Entry[]} */
  const entries = commands().filter((entry) => words.every((word) => entry.label.toLowerCase().includes(word)));
  for (const run of runs) entries.push({ label: `${run.workflowName}/${run.id}`, icon: "right", status: run.details.status, run: () => go(runHref(run.workflowName, run.id)) });
  const chosen = Math.min(index, entries.length - 1);
  /** @param {Entry | undefined} entry */
  const choose = (entry) => {
    closeOverlay();
    entry?.run();
  };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    if (event.key === "ArrowDown") setIndex((chosen + 1) % Math.max(1, entries.length));
    else if (event.key === "ArrowUp") setIndex((chosen + entries.length - 1) % Math.max(1, entries.length));
    else if (event.key === "Enter") choose(entries[chosen]);
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} label="Find a run or a command" class="palette"><input autofocus role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${`palette-${chosen}`}
      aria-label="Find a run or a command" placeholder="Find a run or a command" autocomplete="off" spellcheck=${false} value=${typed} onInput=${onText((value) => { setTyped(value); setIndex(0); })} onKeyDown=${key} />
    <ul id="palette-list" role="listbox" aria-label="matches">${entries.map((entry, position) => html`<li id=${`palette-${position}`} role="option" aria-selected=${String(position === chosen)} onClick=${() => choose(entry)}>
      <${Icon} name=${entry.icon} /><span class="grow cut">${entry.label}</span>${entry.status ? html`<${Status} state=${entry.status} />` : null}</li>`)}
      ${entries.length ? null : html`<li role="option" aria-selected="false" class="ink3">Nothing matches.</li>`}</ul><//>`;
}
