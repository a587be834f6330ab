"use strict";
// Exchanges the code after the # for a session. The code never appears in a request line, and nothing but a click or
// this script uses it, so that a program that only fetches links uses none up.
(() => {
  const given = location.hash.slice(1), needed = document.getElementById("needed");
  if (!given || needed.dataset.state === "refused") return;
  history.replaceState(null, "", location.pathname);
  document.getElementById("code").value = given;
  document.getElementById("form").hidden = false;
  needed.hidden = true;
  document.getElementById("form").submit();
})();
