"use strict";
// The page of a site's owner: it requests a snapshot every second, and sends decisions with the session's CSRF token.
const chart = new BudgetChart(find("history"));
const page = { text: {}, data: null, refused: false, busy: false };
const SIGNS = new Map([["active", "▶"], ["blocked", "▲"], ["finished", "✓"], ["ended", "■"], ["left", "■"], ["charged", "■"], ["declined", "✗"]]);

// ---- sections are drawn again only when their data change, so that the keyboard's focus stays
function changed(name, value) {
  const text = JSON.stringify(value);
  if (page.text[name] === text) return false;
  page.text[name] = text;
  return true;
}

function showSite({ site, alarms, problems }) {
  put(find("name"), site.site);
  put(find("connection"), site.connected ? `Connected to ${site.broker} since ${date(site.connection_since)}${site.server_silent ? "; the server is silent" : ""}`
    : `Not connected to ${site.broker} since ${date(site.connection_since)}`);
  document.title = `${site.site} · dpadmm site`;
  const all = [...alarms, ...problems.map(text => ({ level: "error", code: "problem", text, action: "", command: "" }))];
  if (changed("alarms", all)) showAlarmList(all);
}

function showBudget(budget) {
  put(find("delta"), number(budget.delta));
  put(find("spent"), `ε ${roundedUp(budget.spent)}`);
  put(find("promised"), `ε ${roundedUp(budget.promised)}`);
  put(find("left"), `ε ${roundedDown(budget.left)}`);
  put(find("limit"), `ε ${number(budget.limit)}`);
  const { spent, reserved } = budget.shares, percent = share => `${Math.round(100 * share)}%`;
  find("share-spent").style.width = percent(Math.min(1, spent));
  find("share-reserved").style.width = percent(Math.min(1 - Math.min(1, spent), reserved));
  mark(find("shares"), "aria-label", `Shares of the budget: ${percent(spent)} spent, ${percent(reserved)} reserved, ${percent(Math.max(0, 1 - spent - reserved))} left`);
  chart.update(budget.history, Date.now());
  if (!changed("history", budget.history)) return;
  mark(find("history"), "aria-label", `Budget over time, now ε ${roundedUp(budget.spent)} spent and ε ${roundedUp(budget.promised)} spent or reserved of ${number(budget.limit)}`);
  find("history-rows").replaceChildren(...budget.history.slice(-50).reverse().map(([at, ...values]) =>
    make("tr", "", make("td", "", date(at, { seconds: true })), ...values.map(value => make("td", "", roundedUp(value))))));
}

function button(words, name, run, strong = false) {
  const node = make("button", strong ? "strong" : "", words);
  node.type = "button";
  node.setAttribute("aria-label", `${words} ${name}`);
  node.addEventListener("click", run);
  return node;
}

function showProposals(proposals) {
  if (!changed("proposals", proposals)) return;
  find("no-proposals").hidden = proposals.length > 0;
  find("proposal-rows").replaceChildren(...proposals.map(each => {
    const head = make("h3", "", each.name), about = make("p", "note", `${each.method}, ${each.n_rounds} rounds, proposed ${date(each.at)}, hash `, make("code", "", each.hash.slice(0, 12)));
    const cost = make("p", "", `Costs ε ${roundedUp(each.epsilon)} of your budget. `, make("span", "note", each.releases));
    const parts = [head, about, cost];
    if (each.obstacles.length) parts.push(make("p", "refused", `Not within your limits: ${each.obstacles.join("; ")}.`));
    const row = make("p", "buttons");
    if (each.is_draft) {
      parts.push(make("p", "", each.is_offered ? "Your key is offered. The study with the keys of all sites follows." : "A draft for secure aggregation. To offer a key: "));
      if (!each.is_offered) parts.at(-1).append(make("code", "", `dpadmm site accept ${each.hash.slice(0, 12)}`));
    } else if (!each.obstacles.length)
      row.append(button("Accept", each.name, () => decide(each, "accept"), true), " ");
    row.append(button("Decline", each.name, () => decide(each, "decline")));
    return make("li", "", ...parts, row);
  }));
}

function showStudies(studies) {
  if (!changed("studies", studies)) return;
  find("no-studies").hidden = studies.length > 0;
  find("study-rows").replaceChildren(...studies.map(each => {
    const sign = make("span", "sign", SIGNS.get(each.state) ?? "–");
    sign.setAttribute("aria-hidden", "true");
    const state = make("p", `state ${each.state}`, sign, ` ${each.state}${each.reason ? `: ${each.reason}` : ""}`);
    const fill = make("span"), meter = make("span", "meter", fill);
    fill.style.width = each.planned_epsilon > 0 ? `${Math.min(100, 100 * each.epsilon / each.planned_epsilon)}%` : "0";
    const cost = each.planned_epsilon === null ? make("p", "note", "Nothing was reserved.")
      : make("p", "", `${each.rounds} of ${each.n_rounds} rounds, ε ${roundedUp(each.epsilon)} of ${roundedUp(each.planned_epsilon)}`, meter);
    const row = make("p", "buttons");
    if (each.actions.includes("accept")) row.append(button("Accept", each.name, () => decide(each, "accept")));
    if (each.actions.includes("leave")) row.append(button("Leave", each.name, () => decide(each, "leave")));
    return make("li", "", make("div", "head", make("h3", "", each.name), state), cost,
      make("p", "note", `Decided ${date(each.decided_at)}${each.asked_at ? `, last request ${date(each.asked_at, { seconds: true })}` : ""}, hash `, make("code", "", each.hash.slice(0, 12))),
      ...(row.childElementCount ? [row] : []));
  }));
}

function showReleases(releases) {
  if (!changed("releases", releases)) return;
  find("no-releases").hidden = releases.length > 0;
  find("release-rows").replaceChildren(...releases.map(each => {
    const name = make("th", "", String(each.study));
    name.scope = "row";
    return make("tr", "", make("td", "note", date(each.at, { seconds: true })), name, make("td", "", String(each.round)), make("td", "", number(each.epsilon)));
  }));
}

// ---- decisions
const QUESTIONS = {
  accept: each => [`Accept ${each.name}?`, "This records your current rows and reserves the budget of the study. Do not change the table until it has ended.", "Accept"],
  decline: each => [`Decline ${each.name}?`, "The study gets no answers. You can still accept it later.", "Decline"],
  leave: each => [`Leave ${each.name}?`, "The study gets no more answers, and you cannot accept it again. Spent budget stays spent, the rest becomes free.", "Leave"],
};

function decide(each, decision) {
  const dialog = find("dialog"), [title, text, word] = QUESTIONS[decision](each), asks = decision === "accept" && each.needs_hash;
  put(find("dialog-title"), title);
  put(find("dialog-text"), asks ? `${text} Secure aggregation protects you only if the other owners have the same study: compare its hash with them, for example by telephone, and enter it.` : text);
  put(find("dialog-confirm"), word);
  find("dialog-hash").hidden = !asks;
  find("dialog-input").value = "";
  dialog.returnValue = "cancel";
  dialog.onclose = () => { if (dialog.returnValue === "confirm") send(each, decision, find("dialog-input").value); };
  dialog.showModal();
}

async function send(each, decision, hash) {
  if (page.busy) return;
  page.busy = true;
  document.body.classList.add("busy");
  notice("Working …");
  try {
    const answer = await fetch(`studies/${encodeURIComponent(each.hash)}/${decision}`, {
      method: "POST", headers: { "Content-Type": "application/json", "X-CSRF-Token": csrfToken }, body: JSON.stringify({ hash }),
    });
    const kind = answer.headers.get("content-type") ?? "", told = kind.includes("json") ? await answer.json() : { error: (await answer.text()).trim() };
    notice(told.message ?? `Not done: ${told.error}`, { stays: !told.message });
  } catch {
    notice("Not done: the site does not answer.", { stays: true });
  }
  page.busy = false;
  document.body.classList.remove("busy");
  await ask();
}

let hiding = null;
function notice(text, { stays = false } = {}) {
  clearTimeout(hiding);
  put(find("lost"), text);
  put(find("spoken"), text);
  find("lost").hidden = !text;
  if (text && !stays) hiding = setTimeout(() => { find("lost").hidden = true; }, 6000);
}

// ---- the line
function line(kind, words) {
  if (find("line").dataset.line !== kind && ["lost", "refused"].includes(kind)) notice(words === "Logged out" ? "This session has ended. Print a new link: dpadmm site status --link" : "Connection lost. Trying again; this page shows the last known state.", { stays: true });
  else if (["lost", "refused"].includes(find("line").dataset.line) && kind === "live") notice("");
  mark(find("line"), "data-line", kind);
  put(find("line-words"), words);
}

async function ask() {
  try {
    const answer = await fetch("snapshot", { signal: AbortSignal.timeout(10000) });
    page.refused = answer.status === 403;
    if (page.refused) return line("refused", "Logged out");
    if (!answer.ok) return line("lost", "No update");
    const data = await answer.json();
    put(find("as-of"), date(data.at * 1000, { seconds: true }));
    line(data.site.connected ? "live" : "alarm", data.site.connected ? "Live" : "Not connected");
    showSite(data); showBudget(data.budget); showProposals(data.proposals); showStudies(data.studies); showReleases(data.releases);
  } catch {
    if (!page.refused) line("lost", "Connection lost");
  }
}

async function poll() {
  if (!page.busy) await ask();
  setTimeout(poll, page.refused ? 3000 : 1000);
}
logOutWith(find("logout"));
poll();
