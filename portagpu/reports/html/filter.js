"use strict";
// Filter and search of the checks of a page. What is chosen stands in the address, so that it can
// be sent: report.html#?verdict=FAIL&q=links
(() => {
  const BATCH = 100;
  const controls = document.querySelector(".filter");
  if (!controls) return;
  const facets = [...controls.querySelectorAll("select")];
  const search = controls.querySelector("input");
  const status = controls.querySelector("[role=status]");
  const number = (count) => count.toLocaleString("en");

  // a page of one run: its rows are there and are hidden. An entry is one result, which is a row,
  // or a variant in a row of results that differ only in their device, parameters or value
  const rowsOfPage = () => {
    const folds = [...document.querySelectorAll("#checks details")];
    const opened = folds.map((fold) => fold.open);
    const rows = [...document.querySelectorAll("#checks tbody tr")];
    const entriesOf = (row) => {
      const { suite, area } = row.closest(".area").dataset;
      const verdict = row.querySelector(".badge").textContent;
      const [name, reason] = [row.querySelector(".id").textContent, row.cells[2].textContent];
      const variants = [...row.querySelectorAll("th > [id]")];
      return (variants.length ? variants : [row]).map((place) => {
        const link = place === row ? row.querySelector(".id") : place;
        link.href = `#${encodeURIComponent(place.id)}`;
        const where = (place === row ? row.cells[1] : place).querySelector(".soft");
        const device = where ? where.textContent.trim().slice("on ".length) : "";
        const own = place === row ? "" : place.textContent.replace(where?.textContent ?? "", "");
        const text = [name + own, device, reason].join("\n").toLowerCase();
        return { place, verdict, suite, area, device, text };
      });
    };
    const entries = rows.flatMap(entriesOf);
    const show = (matches, whole) => {
      const kept = new Set(matches.map((entry) => entry.place));
      for (const { place } of entries) place.hidden = !kept.has(place);
      for (const row of rows) {
        if (!row.id) row.hidden = !row.querySelector("th > [id]:not([hidden])");
      }
      folds.forEach((fold, index) => {
        fold.hidden = !whole && !fold.querySelector("tbody tr:not([hidden])");
        fold.open = whole ? opened[index] : !fold.hidden;
      });
      return matches.length;
    };
    return { entries, show };
  };

  // a page of several runs: its rows are data, and are made when they are shown
  const rowsOfData = (source) => {
    const data = JSON.parse(source.textContent);
    const entries = data.rows.map(([run, check, verdict, device, reason, found, evidence]) => {
      const [suite, area, id] = data.checks[check];
      const entry = { id, found: data.texts[found], reason: data.texts[reason] };
      entry.evidence = data.texts[evidence];
      entry.verdict = data.verdicts[verdict];
      entry.device = data.texts[device];
      entry.run = data.runs[run].name;
      entry.target = data.runs[run].target;
      entry.suite = suite;
      entry.area = area;
      entry.text = [id, entry.device, entry.reason, entry.found].join("\n").toLowerCase();
      return entry;
    });
    return { entries, show: inBatches("#checks", rowOf) };
  };

  // rows that are made when they are shown, the first ones of all that match
  const inBatches = (section, make) => {
    const body = document.querySelector(`${section} tbody`);
    const more = document.querySelector(`${section} .more`);
    let left = [];
    const add = () => {
      body.append(...left.splice(0, BATCH).map(make));
      more.hidden = !left.length;
      more.textContent = `Show ${number(Math.min(BATCH, left.length))} more`;
    };
    more.addEventListener("click", () => {
      const before = body.rows.length;
      add();
      body.rows[before].focus();
    });
    return (matches) => {
      body.replaceChildren();
      left = [...matches];
      add();
      return body.rows.length;
    };
  };

  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const badge = (verdict) => {
    const made = element("span", "", `badge ${verdict.toLowerCase()}`);
    const [icon, use] = ["svg", "use"].map((name) =>
      document.createElementNS("http://www.w3.org/2000/svg", name));
    use.setAttribute("href", `#SHAPE-${verdict}`);
    icon.setAttribute("aria-hidden", "true");
    icon.append(use);
    made.append(icon, verdict);
    return made;
  };
  const rowOf = (entry) => {
    const row = element("tr");
    row.tabIndex = -1;
    const head = element("th");
    head.scope = "row";
    const id = element("span", "", "id");
    // an id may be broken after its parts, as in the rest of the page
    for (const part of entry.id.split(/(?<=[/,:._[])(?=.)/)) id.append(part, element("wbr"));
    head.append(id);
    if (entry.device) head.append(element("span", `on ${entry.device}`, "soft"));
    const verdict = element("td");
    verdict.append(badge(entry.verdict));
    const reason = element("td", entry.reason);
    if (entry.found) reason.append(element("span", entry.found, "soft"));
    row.append(verdict, head, reason, element("td", entry.evidence), element("td", entry.run));
    return row;
  };

  const source = document.getElementById("DATA");
  const rows = () => (source ? rowsOfData(source) : rowsOfPage());
  const tools = { element, badge, inBatches, number, again: () => apply() };
  const { entries, show } = globalThis.rowsOfNodes ? rowsOfNodes(tools) : rows();

  // lists with nothing to choose, and that of runs where each is of another target
  const needless = new Set();
  const fill = () => {
    const same = entries.every((entry) => entry.run === entry.target);
    for (const select of facets) {
      const values = new Set(entries.map((entry) => entry[select.name]));
      values.delete(undefined);
      values.delete("");
      if (values.size < 2 || (select.name === "run" && same)) needless.add(select);
      select.append(new Option("all", ""));
      for (const value of values) select.append(new Option(value, value));
    }
  };

  const apply = () => {
    const wanted = facets.filter((select) => select.value);
    for (const select of facets) {
      select.parentElement.hidden = needless.has(select) && !select.value;
    }
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const matches = entries.filter((entry) =>
      wanted.every((select) => entry[select.name] === select.value) &&
      words.every((word) => entry.text.includes(word)));
    const whole = !wanted.length && !words.length;
    const shown = show(matches, whole);
    const first = shown < matches.length ? `, the first ${number(shown)} are shown` : "";
    const of = whole ? "" : `${number(matches.length)} of `;
    status.textContent = `${of}${number(entries.length)} ${controls.dataset.noun}${first}`;
  };

  const remember = () => {
    const state = new URLSearchParams();
    for (const select of facets) if (select.value) state.set(select.name, select.value);
    if (search.value.trim()) state.set("q", search.value.trim());
    const text = state.toString();
    history.replaceState(null, "", text ? `#?${text}` : location.pathname + location.search);
  };

  const recall = () => {
    const chosen = location.hash.startsWith("#?");
    const state = new URLSearchParams(chosen ? location.hash.slice(2) : "");
    for (const select of facets) {
      select.value = state.get(select.name) ?? "";
      if (select.selectedIndex < 0) select.value = "";
    }
    search.value = state.get("q") ?? "";
    apply();
    if (chosen) {
      const heading = controls.closest("section").querySelector("h2");
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
      heading.scrollIntoView();
    }
  };

  const change = () => {
    apply();
    remember();
  };
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(change, 120);
  });
  for (const select of facets) select.addEventListener("change", change);
  controls.querySelector("button").addEventListener("click", () => {
    for (const select of facets) select.value = "";
    search.value = "";
    change();
    search.focus();
  });
  addEventListener("hashchange", () => {
    recall();
    // a result that the filter hid is there again: go to it once more
    const place = document.querySelector(":target");
    for (let fold = place; fold; fold = fold.parentElement) {
      if (fold.tagName === "DETAILS") fold.open = true;
    }
    place?.scrollIntoView();
  });
  fill();
  controls.hidden = false;
  recall();
})();
