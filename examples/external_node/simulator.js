// A pole on a cart, simulated in JavaScript, for a run that learns elsewhere:
//   podium train ppo external --port 5005
//   npm install && node simulator.js 127.0.0.1:5005
"use strict";

const path = require("path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const address = process.argv[2] || "127.0.0.1:5005";
const proto = path.join(__dirname, "../../podium/serving/protocol/podium.proto");

// --- the simulation ---

const SECONDS = 0.02, GRAVITY = 9.8, FORCE = 10, CART = 1, POLE = 0.1, HALF_LENGTH = 0.5;
const FAR = 2.4, TILTED = (12 * Math.PI) / 180, LIMIT = 500;

class Cart {
  reset() {
    this.state = Array.from({ length: 4 }, () => Math.random() * 0.1 - 0.05);
    this.steps = 0;
    return this.state;
  }

  step(action) {
    let [x, speed, angle, turning] = this.state;
    const sin = Math.sin(angle), cos = Math.cos(angle), mass = CART + POLE;
    const push = ((action === 1 ? FORCE : -FORCE) + POLE * HALF_LENGTH * turning ** 2 * sin) / mass;
    const tilt = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - (POLE * cos ** 2) / mass));
    const pull = push - (POLE * HALF_LENGTH * tilt * cos) / mass;
    this.state = [x + SECONDS * speed, speed + SECONDS * pull, angle + SECONDS * turning, turning + SECONDS * tilt];
    this.steps += 1;
    [x, , angle] = this.state;
    const terminated = Math.abs(x) > FAR || Math.abs(angle) > TILTED;
    return { state: this.state, reward: 1, terminated, truncated: !terminated && this.steps === LIMIT };
  }
}

// --- what goes over the wire ---

const bound = [FAR * 2, 1e30, TILTED * 2, 1e30];
const hello = {
  name: "node",
  observation_space: JSON.stringify({ box: [bound.map((b) => -b), bound], shape: [4], dtype: "<f4" }),
  action_space: JSON.stringify({ discrete: 2, start: 0 }),
};

function observation(state) {
  const data = Buffer.alloc(16);
  state.forEach((value, i) => data.writeFloatLE(value, 4 * i));
  return [{ name: "obs", dtype: "float32", shape: [4], data }];
}

// --- playing ---

const { podium } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true, longs: Number }));
const client = new podium.v1.Training(address, grpc.credentials.createInsecure());
const token = new grpc.Metadata();
if (process.env.PODIUM_TOKEN) token.set("authorization", `Bearer ${process.env.PODIUM_TOKEN}`);

function play() {
  const cart = new Cart();
  const lengths = [];
  const stream = client.Play(token);
  const begin = () => stream.write({ start: { observation: observation(cart.reset()) } });

  stream.on("data", ({ welcome, action }) => {
    if (welcome) {
      console.log(`playing for ${welcome.algo} at ${address}`);
      begin();
      return;
    }
    const { state, ...rest } = cart.step(Number(action.action.data.readBigInt64LE()));
    stream.write({ step: { observation: observation(state), ...rest } });
    if (rest.terminated || rest.truncated) {
      lengths.push(cart.steps);
      begin();
    }
  });
  stream.on("error", () => {}); // its status says the same
  stream.on("status", ({ code, details }) => {
    client.close();
    if (code !== grpc.status.OK) fail(details);
    const last = lengths.slice(-20);
    const mean = last.reduce((sum, length) => sum + length, 0) / (last.length || 1);
    console.log(`the run is over: ${lengths.length} episodes, the last ${last.length} of ${mean.toFixed(0)} steps`);
  });
  stream.write({ hello });
}

function fail(reason) {
  console.error(reason);
  process.exit(1);
}

client.waitForReady(Date.now() + 60_000, (error) => (error ? fail(`nobody listens on ${address}`) : play()));
