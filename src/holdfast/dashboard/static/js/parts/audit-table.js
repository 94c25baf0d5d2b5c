/** Audit records: actor, action, target, reason and outcome. */
import { html } from "../core/view.js";
import { runHref, splitPid } from "../core/router.js";
import { heads, Moment } from "./basics.js";
import { text } from "./text.js";

/** @param {{records: any[], target?: boolean}} props */
export function AuditTable({ records, target = true }) {
  return html`<table class="table cards">${heads("at", "actor", "action", target && "target", "reason", "outcome")}
    <tbody>${records.map((record) => {
      const linked = /^[\w.-]+\/[\w-]+$/.test(record.target ?? "");
      const { workflow, id } = splitPid(record.target ?? "/");
      return html`<tr><td><${Moment} at=${record.at} /></td><td>${text(record.actor ?? "–", 60)}</td><td class="medium">${text(record.action.replaceAll("_", " "), 40)}</td>${target ? html`<td class="mono cut">${linked ? html`<a class="link" href=${runHref(workflow, id)}>${text(record.target, 120)}</a>` : text(record.target ?? "–", 120)}</td>` : null}<td class="bidi">${text(record.reason ?? "–", 300)}</td><td class="ink2">${text(record.outcome ?? "–", 120)}</td></tr>`;
    })}</tbody></table>`;
}
