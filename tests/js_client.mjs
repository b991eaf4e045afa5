// OpenAI's JavaScript client against a daemon: node js_client.mjs BASE_URL KEY; prints what it got as JSON.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const Forecast = z.object({ city: z.string(), days: z.number().int() });
const tool = zodFunction({ name: "get_weather", parameters: Forecast });

async function chat() {
  const answer = await client.chat.completions.create({ model: "gpt-4o", messages });
  return [answer.model, answer.choices[0].message.content, answer.choices[0].finish_reason];
}

async function stream() {
  const stream_options = { include_usage: true };
  const stream = await client.chat.completions.create({ model: "speaker", messages, stream: true, stream_options });
  let text = "", usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  return [text, usage.completion_tokens];
}

async function tools() {
  const answer = await client.chat.completions.parse({ model: "caller", messages, tools: [tool] });
  const call = answer.choices[0].message.tool_calls[0];
  return [answer.choices[0].finish_reason, call.function.name, call.function.parsed_arguments];
}

async function streamed_tools() {
  const runner = client.chat.completions.stream({ model: "caller", messages, tools: [tool], tool_choice: "required" });
  const done = [];
  runner.on("tool_calls.function.arguments.done", (call) => done.push([call.name, call.parsed_arguments]));
  const answer = await runner.finalChatCompletion();
  return [answer.choices[0].finish_reason, done];
}

async function run_tools() {
  let asked = null;
  const called = async (parameters) => {
    asked = parameters;
    throw new Error("enough");
  };
  const runnable = zodFunction({ name: "get_weather", parameters: Forecast, function: called });
  const runner = client.chat.completions.runTools({ model: "caller", messages, tools: [runnable] }, { maxChatCompletions: 1 });
  await runner.done().catch(() => null);
  return asked;
}

async function structured() {
  const response_format = zodResponseFormat(Forecast, "forecast");
  const answer = await client.chat.completions.parse({ model: "former", messages, response_format });
  return answer.choices[0].message.parsed;
}

async function models() {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  return [ids.sort(), (await client.models.retrieve("gpt-4o")).root];
}

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return [error.constructor.name, error.status ?? null, error.code ?? null, error.param ?? null];
  }
  return null;
}

async function errors() {
  const wrong = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  const ask = (fields, options) => () => client.chat.completions.create({ model: "speaker", messages, ...fields }, options);
  return {
    name: await failure(ask({ model: "speakr" })),
    streamed: await failure(ask({ model: "speakr", stream: true })),
    value: await failure(ask({ temperature: 3 })),
    length: await failure(ask({ max_tokens: 1000000 })),
    key: await failure(() => wrong.models.list()),
    scope: await failure(() => client.post(new URL("/models/load", baseURL).href, { body: { model: "speaker" } })),
    timeout: await failure(ask({ model: "busy" }, { timeout: 200 })),
  };
}

async function abort() {
  const stream = await client.chat.completions.create({ model: "busy", messages, stream: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
  return chunks >= 3 && chunks < 1000;
}

async function responses() {
  const answer = await client.responses.create({ model: "speaker", input: "What is the capital of France?" });
  const stream = await client.responses.create({ model: "speaker", input: "Hi", stream: true });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  return [answer.output_text, answer.status, text];
}

async function embeddings() {
  const made = await client.embeddings.create({ model: "embedder", input: ["one", "two", "one"] });
  const [one, two, again] = made.data.map((each) => each.embedding);
  const apart = (a, b) => Math.max(...a.map((value, place) => Math.abs(value - b[place])));
  return [one.length > 0, apart(one, again) < 1e-5, apart(one, two) > 1e-3];
}

const parts = { chat, stream, tools, streamed_tools, run_tools, structured, models, errors, abort, responses, embeddings };
const got = {};
for (const [name, part] of Object.entries(parts)) {
  try {
    got[name] = await part();
  } catch (error) {
    got[name] = `${error.constructor.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(got));
