"use strict";
// The status page of a server: it requests a snapshot twice a second and shows what changed.
const wanted = new URLSearchParams(location.search).get("study") ?? "";
const address = wanted ? `snapshot?study=${encodeURIComponent(wanted)}` : "snapshot";

const chart = new Chart(find("plot"), {
  readout: find("readout"), summary: find("chart-summary"), details: find("values"), rows: find("values-rows"),
});
const page = { whole: null, run: null, text: "", receivedAt: 0, ahead: 0, refused: false, onlySites: "all", onlyEvents: "all", screen: null };
const rows = new Map(), eventRows = new Map(), siteChips = new Map(), wasState = new Map();

// ---- speaking: changes of state, gathered so that a busy run does not chatter
const toSay = [], ofSites = [];
let saying = null;
function say(words, list = toSay) {
  list.push(words);
  saying ??= setTimeout(() => {
    saying = null;
    const sites = ofSites.splice(0);
    put(find("spoken"), [...toSay.splice(0), ...(sites.length > 3 ? [`${sites.length} sites changed their state.`] : sites)].join(" "));
  }, 700);
}

// ---- the run
let merged = []; // the study's sites, then the others
const here = () => merged.filter(site => site.inStudy && site.state === "present").length;
const connected = () => merged.filter(site => ["present", "late", "missing", "connected"].includes(site.state)).length;

function mergeSites() { // who is connected is known from the study while it runs, else from the server
  const { study, sites } = page.whole, links = new Map(sites.map(site => [site.name, site]));
  const members = (study?.sites ?? []).map(site => {
    const link = links.get(site.name);
    return { ...site, inStudy: true, ...(study.served ? {} : { state: link?.state ?? "unknown", last_seen: link?.last_seen ?? site.last_seen }) };
  });
  const names = new Set(members.map(site => site.name));
  merged = [...members, ...sites.filter(site => !names.has(site.name)).map(site => ({ ...site, inStudy: false }))];
}

function showEmpty() { // no study yet: who is connected, and what to do next
  const { server, sites } = page.whole;
  put(find("name"), server.host);
  put(find("state-words"), sites.length ? "No study yet" : "No site yet");
  put(find("state-sign"), "◌");
  put(find("since"), "");
  const [words, command] = sites.length ? ["To propose one to the sites", "dpadmm server propose STUDY"] : ["To invite a site", "dpadmm server invite NAME"];
  find("next").replaceChildren(`${words}: `, make("code", "", command));
  put(find("present"), sites.length ? `${connected()} of ${sites.length}` : "–");
  put(find("needed"), "");
  document.title = `dpadmm server · ${server.host}`;
}

function showRun() {
  const { run } = page, { server } = page.whole;
  put(find("host"), run ? server.host : "");
  for (const name of ["parts", "hash-line", "bar", "chart-panel", "events", "about", "rounds-figure", "spent-figure"]) find(name).hidden = !run;
  find("next").hidden = Boolean(run);
  const isOver = !run || ["finished", "ended", "stopped", "interrupted", "proposed"].includes(run.state);
  for (const name of ["left-figure", "deadline-figure"]) find(name).hidden = isOver;
  put(find("present-label"), run?.served ? "Sites present" : "Sites connected");
  if (!run) return showEmpty();
  const { study } = run, done = run.rounds_done, total = study.n_rounds;
  put(find("name"), study.name);
  put(find("hash"), String(study.hash).slice(0, page.screen ? undefined : 12));
  mark(find("hash"), "title", study.hash);
  put(find("state-words"), run.headline);
  put(find("since"), run.since ? `since ${date(run.since, { seconds: true })}` : "");
  put(find("state-sign"), RUN_SIGNS.get(run.state) ?? "–");
  mark(find("state"), "data-state", RUN_SIGNS.has(run.state) ? run.state : "");
  mark(find("bar"), "aria-valuemax", total);
  mark(find("bar"), "aria-valuenow", done);
  mark(find("bar"), "aria-valuetext", `${done} of ${total}`);
  find("bar-fill").style.width = `${Math.min(100, 100 * done / Math.max(1, total))}%`;
  put(find("rounds"), `${done} of ${total}`);
  put(find("present"), run.served ? `${here()} of ${run.sites.length}` : `${connected()} of ${merged.length}`);
  put(find("pace"), isNumber(run.median_seconds) ? perMinute(run.median_seconds) : "");
  put(find("needed"), run.served && isNumber(run.quorum) ? `${run.quorum} needed` : "");
  put(find("spent"), roundedUp(Math.max(0, ...run.sites.map(site => site.epsilon ?? 0))));
  put(find("planned"), `of ${number(study.epsilon)} planned`);
  const title = run.state === "running" ? `${done}/${total}` : run.state;
  if (document.title !== `${title} · ${study.name}`) document.title = `${title} · ${study.name}`;
  if (wasState.get("run") !== run.state) {
    if (wasState.has("run")) say(`${run.headline}.`);
    wasState.set("run", run.state);
  }
  chart.update(run.changes ?? [], total);
  const [d, p] = study.shape ?? [];
  facts([
    ["Method", study.method], ["Loss", study.loss], ["Parameters", isNumber(d) && isNumber(p) ? (p > 1 ? `${d} × ${p}` : d) : "–"], ["Rounds", total],
    ["Planned ε", number(study.epsilon)], ["δ", number(study.delta)], ["Noise multiplier", study.noise],
    ["Quorum", `${run.quorum} of ${run.sites.length}`],
    ["Median round", pace(run.median_seconds)], ["Began", date(run.begun_at)], ["Last round", date(run.last_round_at)],
    ...(isNumber(run.min_honest_sites) ? summed(run) : []),
  ]);
}

function summed(run) { // secure aggregation
  const members = run.sites.filter(site => site.member).map(site => site.name);
  return [
    ["Planned ε alone, if all others collude", number(run.study.epsilon_if_others_collude)], ["Honest sites in every round, at least", run.min_honest_sites],
    ["Members of the round", members.length ? members.join(", ") : "–"],
    ["Aborted rounds", run.aborted_rounds.length ? run.aborted_rounds.map(({ round, reason }) => `${round} (${reason})`).join(", ") : "none"],
  ];
}

function facts(pairs) {
  const list = find("facts");
  if (list.childElementCount !== pairs.length)
    list.replaceChildren(...pairs.map(([name]) => make("div", "", make("dt", "", name), make("dd"))));
  pairs.forEach(([, value], i) => put(list.children[i].lastChild, value ?? "–"));
}

function showTimes() { // what goes on between two messages
  const run = page.run ?? {};
  const gone = (performance.now() - page.receivedAt) / 1000;
  const left = base => (isNumber(base) ? Math.max(0, base - gone) : null);
  if (["live", "alarm"].includes(find("line").dataset.line)) { // nothing is counted down that may long have changed
    const rest = left(run.seconds_left);
    put(find("left"), duration(rest));
    put(find("ends"), isNumber(rest) ? `until ${date(Date.now() + page.ahead + rest * 1000)}` : "");
    put(find("deadline"), duration(left(run.deadline_in)));
  }
  for (const site of merged) {
    const row = rows.get(site.name);
    if (row) put(row.seen, ago(site.last_seen, Date.now() + page.ahead));
  }
}

// ---- all studies of this server
function showStudies() {
  const { studies } = page.whole;
  find("studies").hidden = studies.length < 2;
  find("study-rows").replaceChildren(...studies.map(each => {
    const own = each.hash === page.run?.study.hash, name = make("th", "");
    if (own) name.append(`${each.name} (shown here)`);
    else { const link = make("a", "", String(each.name)); link.href = `?study=${encodeURIComponent(each.hash.slice(0, 16))}`; name.append(link); }
    name.scope = "row";
    name.title = each.hash;
    const sign = make("span", "sign", RUN_SIGNS.get(each.state) ?? "–");
    sign.setAttribute("aria-hidden", "true");
    const state = make("td", "state", sign, ` ${each.state}`);
    mark(state, "data-state", each.state);
    const present = isNumber(each.sites_present) ? each.sites_present : "–";
    return make("tr", "", name, state, make("td", "", `${each.rounds_done} of ${each.n_rounds}`),
      make("td", "", `${roundedUp(each.epsilon)} of ${number(each.planned_epsilon)}`), make("td", "", `${present} of ${each.n_sites}`),
      make("td", "", date(each.begun_at)), make("td", "", date(each.last_round_at)));
  }));
}

// ---- sites
function newRow(name) {
  const cell = (className, ...inside) => { const td = make("td", className, ...inside); td.setAttribute("role", "cell"); return td; };
  const row = { sign: make("span", "sign"), word: make("span"), code: make("span", "code"), answered: make("span"), spent: make("span"), planned: make("span", "note"), fill: make("span"), seen: make("span") };
  row.sign.setAttribute("aria-hidden", "true");
  const head = make("th", "site", name);
  head.scope = "row";
  head.setAttribute("role", "rowheader");
  row.state = cell("state", row.sign, " ", row.word, " ", row.code);
  row.seenCell = cell("seen", row.seen);
  row.node = make("tr", "", head, row.state, cell("answered", row.answered),
    cell("epsilon", row.spent, " ", row.planned, make("span", "meter", row.fill)), row.seenCell);
  row.node.setAttribute("role", "row");
  return row;
}

function showSites() {
  const { run } = page, body = find("site-rows"), planned = run?.study.epsilon, tally = new Map([["all", 0]]);
  const names = new Set(merged.map(site => site.name));
  for (const [name, row] of rows) if (!names.has(name)) { row.node.remove(); rows.delete(name); wasState.delete(`site ${name}`); }
  merged.forEach((site, i) => {
    let row = rows.get(site.name);
    if (!row) rows.set(site.name, row = newRow(site.name));
    if (body.children[i] !== row.node) body.insertBefore(row.node, body.children[i] ?? null);
    const known = SITE_STATES.has(site.state) ? site.state : "silent", words = site.code ? `${site.state}, ${site.code}` : String(site.state);
    put(row.sign, SITE_STATES.get(known));
    put(row.word, site.state);
    put(row.code, site.code ?? "");
    mark(row.code, "title", site.code ?? "");
    if (row.state.className !== `state ${known}`) row.state.className = `state ${known}`;
    put(row.answered, site.inStudy ? `${site.answered} of ${run.study.n_rounds}` : run ? "not in this study" : "–");
    put(row.spent, site.inStudy ? roundedUp(site.epsilon) : "");
    const alone = isNumber(site.epsilon_if_others_collude) ? `; ${roundedUp(site.epsilon_if_others_collude)} alone` : "";
    put(row.planned, site.inStudy ? `of ${number(planned)}${alone}` : "");
    row.fill.parentElement.hidden = !site.inStudy;
    row.fill.style.width = isNumber(site.epsilon) && planned > 0 ? `${Math.min(100, 100 * site.epsilon / planned)}%` : "0";
    mark(row.seenCell, "title", site.last_seen ?? "");
    tally.set("all", tally.get("all") + 1);
    tally.set(known, (tally.get(known) ?? 0) + 1);
    row.shown = known;
    const before = wasState.get(`site ${site.name}`);
    if (before !== undefined && before !== site.state) say(`${site.name} is ${words}.`, ofSites);
    wasState.set(`site ${site.name}`, site.state);
  });
  find("no-sites").hidden = merged.length > 0;
  find("main").classList.toggle("few", merged.length <= 6);
  find("main").classList.toggle("alone", !run);
  for (const kind of ["all", ...SITE_STATES.keys()]) {
    const count = tally.get(kind) ?? 0, chip = siteChips.get(kind);
    chip.node.hidden = count === 0 && kind !== "all" && kind !== (run?.served ? "present" : "connected") && page.onlySites !== kind;
    put(chip.count, count);
  }
  filterSites();
}

function filterSites() {
  for (const row of rows.values()) row.node.hidden = page.onlySites !== "all" && row.shown !== page.onlySites;
  for (const [kind, chip] of siteChips) mark(chip.node, "aria-pressed", kind === page.onlySites);
}

for (const kind of ["all", ...SITE_STATES.keys()]) {
  const count = make("span", "", "0"), sign = make("b", kind, SITE_STATES.get(kind) ?? "");
  sign.setAttribute("aria-hidden", "true");
  const node = make("button", "", ...(kind === "all" ? [] : [sign, " "]), `${capitalised(kind)} `, count);
  node.type = "button";
  node.hidden = kind !== "all" && kind !== "present";
  node.addEventListener("click", () => { page.onlySites = kind; filterSites(); });
  siteChips.set(kind, { node, count });
  find("site-filter").append(node);
}

// ---- events
function showEvents() {
  const list = find("event-rows"), events = page.run?.events ?? [], now = new Set(events.map(event => event.seq));
  for (const [seq, row] of eventRows) if (!now.has(seq)) { row.node.remove(); eventRows.delete(seq); }
  for (const event of events) {
    if (eventRows.has(event.seq)) continue;
    const level = LEVELS.has(event.level) ? event.level : "info", sign = make("span", `sign ${level}`, LEVELS.get(level));
    sign.setAttribute("role", "img");
    sign.setAttribute("aria-label", level);
    const time = make("time", "note", date(event.at, { seconds: true }));
    time.dateTime = event.at;
    time.title = event.at;
    const row = { calm: level === "info", node: make("li", level, time, sign, make("span", "text", String(event.text))) };
    eventRows.set(event.seq, row);
    list.prepend(row.node);
  }
  put(find("count-all"), eventRows.size);
  put(find("count-warnings"), [...eventRows.values()].filter(row => !row.calm).length);
  filterEvents();
}

function filterEvents() {
  let shown = 0;
  for (const row of eventRows.values()) {
    row.node.hidden = page.onlyEvents === "warnings" && row.calm;
    shown += !row.node.hidden;
  }
  find("no-events").hidden = shown > 0;
  put(find("no-events"), page.onlyEvents === "warnings" ? "No warning." : "Nothing yet.");
  for (const button of find("event-filter").children) mark(button, "aria-pressed", button.dataset.only === page.onlyEvents);
}
find("event-filter").addEventListener("click", event => {
  const button = event.target.closest("button");
  if (button) { page.onlyEvents = button.dataset.only; filterEvents(); }
});

// ---- the hash
find("copy").addEventListener("click", async () => {
  const button = find("copy");
  try { await navigator.clipboard.writeText(find("hash").title); put(button, "Copied"); }
  catch { // no clipboard: the whole hash, selected, to copy by hand
    put(find("hash"), find("hash").title);
    getSelection().selectAllChildren(find("hash"));
    put(button, "Selected");
  }
  setTimeout(() => put(button, "Copy"), 2000);
});

// ---- paper shows everything: all sites and events, the whole hash, and what is folded away
const folded = [];
addEventListener("beforeprint", () => {
  folded.push(...document.querySelectorAll("details:not([open])"));
  for (const each of folded) each.open = true;
  Object.assign(page, { screen: [page.onlySites, page.onlyEvents], onlySites: "all", onlyEvents: "all" });
  filterSites(); filterEvents(); chart.draw();
  if (page.run) showRun();
});
addEventListener("afterprint", () => {
  for (const each of folded.splice(0)) each.open = false;
  [page.onlySites, page.onlyEvents] = page.screen;
  page.screen = null;
  filterSites(); filterEvents();
  if (page.run) showRun();
});

// ---- the line
function line(kind, words, notice = "") {
  const before = find("line").dataset.line;
  const received = each => ["opening", "live", "alarm"].includes(each); // the headline reports changes between these
  if (before !== kind && !(received(before) && received(kind))) say(notice || `${words}.`);
  mark(find("line"), "data-line", kind);
  put(find("line-words"), words);
  put(find("lost"), notice);
  find("lost").hidden = !notice;
}

function update(text) {
  if (text === page.text) return showLine();
  const whole = JSON.parse(text);
  Object.assign(page, { text, whole, run: whole.study, receivedAt: performance.now(), ahead: whole.at * 1000 - Date.now() });
  put(find("as-of"), date(whole.at * 1000, { seconds: true }));
  mergeSites();
  showLine(); showRun(); showSites(); showEvents(); showTimes();
  const alarms = JSON.stringify(whole.alarms);
  if (alarms !== page.alarms) { page.alarms = alarms; showAlarmList(whole.alarms); }
  const studies = JSON.stringify([whole.studies, page.run?.study.hash]);
  if (studies !== page.studies) { page.studies = studies; showStudies(); }
}

function showLine() {
  if (page.run?.failing) line("alarm", capitalised(page.run.state));
  else if (page.whole.server.running && !page.whole.server.connected) line("alarm", "Broker not connected");
  else line("live", "Live");
}

// Asks twice a second; what comes late counts as lost, and is asked for again.
async function poll() {
  try {
    const answer = await fetch(address, { signal: AbortSignal.timeout(10000) });
    page.refused = answer.status === 403;
    if (page.refused) line("refused", "Logged out", "This session has ended. Print a new link: dpadmm server status --link");
    else if (answer.ok) update(await answer.text());
    else line("lost", "No update", "The server cannot report its state now. This page shows the last known state.");
  } catch {
    if (["finished", "stopped", "ended"].includes(page.run?.state)) line("ended", "Ended", "The server has stopped. This page shows its last state.");
    else if (!page.refused) line("lost", "Connection lost", "Connection lost. Trying again; this page shows the last known state.");
  }
  setTimeout(poll, page.refused ? 3000 : 500);
}
logOutWith(find("logout"));
poll();
setInterval(showTimes, 500);
