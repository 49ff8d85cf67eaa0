(() => {
"use strict";
{% include "script/base.js" %}
{% include "script/state.js" %}
{% include "script/chart.js" %}
{% include "script/views.js" %}
{% include "script/table.js" %}
{% include "script/card.js" %}
{% include "script/live.js" %}
{% include "script/start.js" %}
})();
