"use strict";
// Numbers, times and states in words, and putting them on the page as text (never as markup).
const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const raised = n => (n < 0 ? "⁻" : "") + [...String(Math.abs(n))].map(digit => SUPERSCRIPT[digit]).join("");
const isNumber = value => typeof value === "number" && Number.isFinite(value);

function number(value, digits = 3) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(digits)));
  const [front, power] = value.toExponential(digits - 1).split("e");
  const shown = String(Number(front));
  return (shown === "1" ? "" : shown + " × ") + "10" + raised(Number(power));
}

// As many places for every site, so that columns stand still. A cost is rounded up, and what is left is rounded down.
function roundedUp(value) { return isNumber(value) ? (Math.abs(value) < 100 ? (Math.ceil(value * 1000 - 1e-6) / 1000).toFixed(3) : number(value)) : "–"; }
function roundedDown(value) { return isNumber(value) ? (Math.abs(value) < 100 ? (Math.floor(value * 1000 + 1e-6) / 1000).toFixed(3) : number(value)) : "–"; }

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds)), two = n => String(n).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

function pace(seconds) {
  if (!isNumber(seconds)) return "–";
  return seconds < 1 ? `${number(seconds * 1000, 2)} ms` : seconds < 60 ? `${number(seconds, 2)} s` : duration(seconds);
}

function perMinute(seconds) { // of one round
  if (!isNumber(seconds) || seconds <= 0) return "";
  const rate = 60 / seconds;
  return `${rate < 10 ? number(rate, 2) : Math.round(rate).toLocaleString("en-GB")} per minute`;
}

function ago(iso, now) {
  const then = Date.parse(iso ?? "");
  if (Number.isNaN(then)) return "never";
  const s = (now - then) / 1000;
  if (s < 10) return "just now";
  if (s < 60) return `${Math.floor(s / 10) * 10} s ago`; // in steps: a column that does not flicker
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return new Date(then).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

function date(iso, { seconds = false } = {}) { // in this browser's time zone
  const at = new Date(iso ?? "");
  if (Number.isNaN(at.getTime())) return "–";
  const day = at.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...(at.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" }) });
  return `${day}, ${at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}) })}`;
}

const capitalised = word => `${word.slice(0, 1).toUpperCase()}${word.slice(1)}`;

const SITE_STATES = new Map([
  ["present", "✓"], ["late", "◐"], ["missing", "○"], ["connected", "◔"], ["silent", "–"], ["refused", "✗"], ["excluded", "⊗"], ["revoked", "⊘"], ["expired", "⊘"],
  ["unknown", "?"],
]);
const RUN_SIGNS = new Map([["proposed", "◌"], ["waiting", "◌"], ["running", "▶"], ["stalled", "▲"], ["finished", "✓"], ["stopped", "■"], ["interrupted", "■"], ["ended", "■"]]);
const LEVELS = new Map([["info", "·"], ["warning", "▲"], ["error", "✗"]]);

const find = id => document.getElementById(id);
function put(node, text) { // only what changed touches the page
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}
function mark(node, name, value) {
  value = String(value);
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
function make(tag, className, ...inside) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...inside); // strings become text nodes
  return node;
}

// Alarms, with what to do.
function showAlarmList(alarms) {
  find("alarms").hidden = !alarms.length;
  find("alarm-rows").replaceChildren(...alarms.map(alarm => {
    const level = LEVELS.has(alarm.level) ? alarm.level : "warning", sign = make("span", `sign ${level}`, LEVELS.get(level));
    sign.setAttribute("aria-hidden", "true");
    const head = make("p", "text", make("b", "", `${capitalised(level)}, ${alarm.code}:`), ` ${alarm.text}`);
    const todo = make("p", "todo", alarm.command ? `${alarm.action}:` : `${alarm.action}.`);
    return make("li", level, sign, make("div", "", head, ...(alarm.action ? [todo] : []), ...(alarm.command ? [make("code", "command", alarm.command)] : [])));
  }));
}

// Ends the session at the server, then shows the login page.
function logOutWith(button) {
  button.addEventListener("click", async () => {
    await fetch("logout", { method: "POST", headers: { "X-CSRF-Token": csrfToken } }).catch(() => null);
    location.assign("login");
  });
}
const csrfToken = document.querySelector("meta[name=csrf]").content;
