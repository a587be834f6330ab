"use strict";
// The curve: value over round, logarithmic; drawn at the size it is shown, read by keyboard, mouse and finger.
class Chart {
  constructor(box, { readout, summary, details, rows }) {
    Object.assign(this, { box, readout, summary, details, rows, points: [], total: 0, at: null, due: false });
    this.svg = Chart.part(box, "svg", { "aria-hidden": "true" });
    for (const name of ["grid", "band", "curve", "cursor", "dot", "labels"])
      this[name] = Chart.part(this.svg, { grid: "path", band: "path", curve: "path", cursor: "path", dot: "circle", labels: "g" }[name], { class: name });
    new ResizeObserver(() => this.later()).observe(box);
    box.addEventListener("keydown", event => this.key(event));
    for (const kind of ["pointermove", "pointerdown"]) box.addEventListener(kind, event => this.point(event));
    box.addEventListener("pointerleave", () => this.choose(null));
    box.addEventListener("blur", () => this.choose(null));
    details.addEventListener("toggle", () => this.later());
  }

  static part(parent, tag, attributes) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return parent.appendChild(node);
  }

  update(told, total) {
    const points = told.filter(([, value]) => value > 1e-99 && value < 1e99); // what the axis can show
    const last = this.points.at(-1), next = points.at(-1);
    if (points.length === this.points.length && total === this.total && last?.[0] === next?.[0] && last?.[1] === next?.[1]) return;
    const chosen = this.at === null ? null : this.points[this.at]?.[0];
    Object.assign(this, { points, total });
    if (chosen !== null) this.at = this.nearest(chosen);
    this.later();
  }

  later() { // at most once per frame
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.draw(); });
  }

  nearest(round) {
    let low = 0, high = this.points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.points[middle][0] < round) low = middle + 1; else high = middle;
    }
    return low > 0 && round - this.points[low - 1][0] < this.points[low][0] - round ? low - 1 : Math.max(0, low);
  }

  choose(at) {
    if (at === this.at) return;
    this.at = at;
    this.later();
  }

  key(event) {
    const last = this.points.length - 1, from = this.at ?? last;
    const to = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1,
      PageDown: from - 10, PageUp: from + 10, Home: 0, End: last, Escape: null }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.choose(to === null ? null : Math.min(last, Math.max(0, to)));
  }

  point(event) {
    if (!this.points.length || !this.scale) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    this.choose(this.nearest(this.scale.round(x)));
  }

  draw() {
    const width = this.box.clientWidth, height = this.box.clientHeight, narrow = width < 480;
    if (!width) return;
    const left = 52, right = width - 20, top = 12, bottom = height - 40;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const values = this.points.map(point => point[1]);
    const [low, high] = values.length ? Chart.around(Chart.least(values), Chart.most(values)) : [0.1, 1];
    const end = this.points.at(-1)?.[0] ?? Math.max(1, this.total); // the last round, so that no part is empty
    const x = round => left + (right - left) * (end > 1 ? (round - 1) / (end - 1) : 0.5);
    const y = value => bottom - (bottom - top) * Math.log(value / low) / Math.log(high / low);
    this.scale = { round: at => 1 + (at - left) / (right - left) * (end - 1) };
    this.axes({ x, y, low, high, end, left, right, top, bottom, narrow });
    this.line(x, y);
    this.tell(x, y, top, bottom);
  }

  axes({ x, y, low, high, end, left, right, top, bottom, narrow }) {
    const labels = [], lines = [];
    for (const value of Chart.powers(low, high)) {
      lines.push(`M${left} ${y(value).toFixed(1)}H${right}`);
      labels.push([left - 8, y(value) + 4, Chart.tick(value), "end"]);
    }
    for (const round of Chart.ticks(end, narrow ? 4 : 8)) {
      lines.push(`M${x(round).toFixed(1)} ${bottom}v5`);
      labels.push([x(round), bottom + 19, String(round), "middle"]);
    }
    labels.push([(left + right) / 2, bottom + 36, "round", "middle"]);
    this.grid.setAttribute("d", `${lines.join("")}M${left} ${top}V${bottom}H${right}`);
    const key = JSON.stringify(labels);
    if (key === this.labelled) return;
    this.labelled = key;
    this.labels.replaceChildren();
    for (const [lx, ly, text, anchor] of labels)
      Chart.part(this.labels, "text", { x: lx.toFixed(1), y: ly.toFixed(1), "text-anchor": anchor }).textContent = text;
  }

  line(x, y) { // where points crowd, the median of each stretch, inside a band from least to most
    const stretches = [], crowded = this.points.length > 40 && x(this.points[1][0]) - x(this.points[0][0]) < 2, apart = 6;
    for (const [round, value] of this.points) {
      const at = Math.floor(x(round) / apart);
      if (stretches.at(-1)?.at === at) stretches.at(-1).values.push(value);
      else stretches.push({ at, x: x(round), values: [value] });
    }
    const place = (px, v) => `${px.toFixed(1)} ${y(v).toFixed(1)}`;
    const middle = s => { const v = [...s.values].sort((a, b) => a - b), h = v.length >> 1; return v.length % 2 ? v[h] : Math.sqrt(v[h - 1] * v[h]); };
    this.curve.setAttribute("d", crowded
      ? "M" + stretches.map(s => place(s.x, middle(s))).join("L")
      : this.points.length ? "M" + this.points.map(([round, value]) => place(x(round), value)).join("L") : "");
    this.band.setAttribute("d", crowded
      ? "M" + [...stretches.map(s => place(s.x, Chart.most(s.values))), ...stretches.reverse().map(s => place(s.x, Chart.least(s.values)))].join("L") + "Z"
      : "");
  }

  tell(x, y, top, bottom) {
    const last = this.points.length - 1, at = this.at ?? last, point = this.points[at];
    this.svg.classList.toggle("bare", !point);
    mark(this.box, "aria-valuemin", this.points[0]?.[0] ?? 0);
    mark(this.box, "aria-valuemax", this.points[last]?.[0] ?? 0);
    if (!point) return;
    const [round, value] = point, words = `round ${round}: ${number(value)}`;
    this.cursor.setAttribute("d", this.at === null ? "" : `M${x(round).toFixed(1)} ${top}V${bottom}`);
    for (const [name, to] of [["cx", x(round)], ["cy", y(value)], ["r", 4.5]]) this.dot.setAttribute(name, to);
    put(this.readout, this.at === null ? `Latest, ${words}` : words.replace("r", "R"));
    if (this.at !== null || document.activeElement !== this.box) { // a reader who follows is not told every round
      mark(this.box, "aria-valuenow", round);
      mark(this.box, "aria-valuetext", words);
    }
    const least = this.points.reduce((a, b) => (b[1] < a[1] ? b : a)), first = this.points[0];
    put(this.summary, last < 1 ? `${number(first[1])} in round ${first[0]}.`
      : `From ${number(first[1])} in round ${first[0]} to ${number(this.points[last][1])} in round ${this.points[last][0]}; least ${number(least[1])} in round ${least[0]}.`);
    if (this.details.open) this.table();
  }

  table() {
    const n = this.points.length, some = Math.min(n, 25);
    const chosen = Array.from({ length: some }, (_, i) => this.points[some > 1 ? Math.round(i * (n - 1) / (some - 1)) : 0]);
    this.rows.replaceChildren(...chosen.map(([round, value]) => make("tr", "", make("th", "", String(round)), make("td", "", number(value)))));
  }

  static least(values) { return values.reduce((a, b) => Math.min(a, b)); }
  static most(values) { return values.reduce((a, b) => Math.max(a, b)); }
  static around(low, high) { // out to 1, 2 or 5 times a power of ten
    const steps = value => [1, 2, 5, 10].map(step => step * 10 ** Math.floor(Math.log10(value)));
    const from = steps(low).filter(step => step <= low * 1.0001).at(-1) ?? low;
    const to = steps(high).find(step => step >= high * 0.9999) ?? high;
    return to > from * 1.5 ? [from, to] : [from / 2, to * 2];
  }
  static powers(low, high) { // powers of ten, or 1, 2, 5 if few of them fit
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), found = [];
    const skip = Math.max(1, Math.ceil((last - first) / 6)), between = last - first < 2 ? [1, 2, 5] : [1];
    for (let power = first - 1; power <= last; power++)
      for (const step of between) {
        const value = Number(`${step}e${power}`);
        if (value >= low * 0.999 && value <= high * 1.001 && (power - first) % skip === 0) found.push(value);
      }
    return found;
  }
  static tick(value) { return value >= 1e-3 && value < 1e5 ? String(Number(value.toPrecision(2))) : number(value, 1); }
  static ticks(end, most) {
    let step = 1;
    for (let size = 1; end / step > most; size *= 10)
      for (const times of [1, 2, 5]) if (end / (step = size * times) <= most) break;
    const found = [1];
    for (let round = step; round < end - step * 0.6; round += step) if (round > 1 && round > step * 0.4) found.push(round);
    return end > 1 ? [...found, end] : found;
  }
}
