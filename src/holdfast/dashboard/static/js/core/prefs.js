/** Preferences of this browser: theme, time zone, single-key shortcuts, columns, saved views. */
import { createStore } from "./store.js";

const KEY = "holdfast.preferences";

/**
 * @typedef {object} Preferences
 * @property {"light" | "dark" | "system"} theme
 * @property {"utc" | "local"} zone
 * @property {boolean} keys single-key shortcuts are on
 * @property {string[]} columns optional columns of the list of runs
 * @property {{name: string, query: string}[]} views
 */

/** @type {Preferences} */
const DEFAULTS = { theme: "system", zone: "utc", keys: true, columns: ["duration"], views: [] };

/** @returns {Preferences} */
function load() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return { ...DEFAULTS }; // storage is blocked, or another program wrote the key
  }
}

export const preferences = createStore(load());

/** @param {Partial<Preferences>} change */
export function setPreferences(change) {
  preferences.set({ ...preferences.get(), ...change });
  try {
    localStorage.setItem(KEY, JSON.stringify(preferences.get()));
  } catch {
    // The preference lasts until the page is closed.
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const { theme } = preferences.get();
  return theme === "dark" || (theme === "system" && dark.matches);
}

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

export function toggleTheme() {
  setPreferences({ theme: isDark() ? "light" : "dark" });
}

preferences.subscribe(applyTheme);
dark.addEventListener("change", applyTheme);
applyTheme();
