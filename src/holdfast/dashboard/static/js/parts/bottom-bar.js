/** The tabs at the bottom of narrow windows: four pages, and a sheet with the rest. */
import { caller } from "../core/api.js";
import { toggleTheme } from "../core/prefs.js";
import { useGet, usePolling } from "../core/resource.js";
import { html } from "../core/view.js";
import { Help } from "./help.js";
import { Icon } from "./icons.js";
import { closeOverlay, Dialog, openOverlay } from "./overlay.js";
import { signOut } from "../screens/sign-in.js";

const FIRST = 4;
const POLL_MS = 30_000;
const narrow = matchMedia("(max-width: 767px)");

/** @typedef {[string, string, string][]} Pages key, label and icon of each page */

/** The number of causes that need attention; 0 in wide windows, which show no badge. */
function useCauses() {
  const known = caller()?.confined === false;
  const attention = useGet(known && narrow.matches ? "_attention" : null);
  usePolling(() => narrow.matches && known && attention.refresh(), POLL_MS);
  return attention.data?.groups.length ?? 0;
}

/** @param {{page: string, pages: Pages, hrefOf: (page: string) => string}} props */
export function BottomBar({ page, pages, hrefOf }) {
  const causes = useCauses();
  const shown = page === "run" ? "runs" : page;
  const rest = pages.slice(FIRST);
  return html`<nav class="bottom-nav" aria-label="pages">${pages.slice(0, FIRST).map(([key, label, icon]) => html`<a href=${hrefOf(key)} aria-current=${key === shown ? "page" : undefined}><${Icon} name=${icon} size=${20} />${label}${key === "overview" && causes ? html`<b class="count" aria-label=${`${causes} need attention`}>${causes}</b>` : null}</a>`)}
    <button type="button" aria-current=${rest.some(([key]) => key === shown) ? "page" : undefined} onClick=${() => openOverlay(More, { pages: rest, hrefOf })}><${Icon} name="more" size=${20} />More</button></nav>`;
}

/** @param {{pages: Pages, hrefOf: (page: string) => string}} props */
function More({ pages, hrefOf }) {
  /** @param {string} label @param {string} icon @param {() => void} act */
  const item = (label, icon, act) => html`<button type="button" onClick=${() => { closeOverlay(); act(); }}><${Icon} name=${icon} />${label}</button>`;
  return html`<${Dialog} label="More"><header>More</header><div class="body more">${pages.map(([key, label, icon]) => html`<a href=${hrefOf(key)} onClick=${closeOverlay}><${Icon} name=${icon} />${label}</a>`)}
    ${item("Light or dark", "sun", toggleTheme)}${item("Settings", "list", () => openOverlay(Help))}${caller()?.session ? item("Sign out", "right", () => void signOut()) : null}</div><//>`;
}
