/** The one live region of the page, for screen readers: at most one message in five seconds, the latest one. */
const PAUSE = 5000;
let last = 0;
/** @type {string | null} */
let next = null;

/** @param {string} message */
export function announce(message) {
  const waiting = next !== null;
  next = message;
  if (waiting) return;
  setTimeout(() => {
    const region = document.getElementById("announcements");
    if (region) region.textContent = next;
    next = null;
    last = Date.now();
  }, Math.max(0, last + PAUSE - Date.now()));
}
